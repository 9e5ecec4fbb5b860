import runs.state_machine
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0002_stems'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='failures_in_row',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='run',
            name='restarting',
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='worker',
            name='after_stop',
            field=models.CharField(choices=[('Pending', 'Pending'), ('Preparing', 'Preparing'), ('Pulling', 'Pulling'), ('Starting', 'Starting'), ('Running', 'Running'), ('Restarting', 'Restarting'), ('Completed', 'Completed'), ('Failed', 'Failed'), ('Cancelled', 'Cancelled')], db_default=runs.state_machine.WorkerState['CANCELLED'], default=runs.state_machine.WorkerState['CANCELLED'], max_length=12),
        ),
    ]
