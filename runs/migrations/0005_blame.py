
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0002_draining'),
        ('runs', '0004_claim'),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='blame',
            field=models.CharField(blank=True, db_default='', max_length=8),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='machine',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='attempts', to='machines.machine'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(fields=['machine', 'placed_at'], name='attempt_machine'),
        ),
    ]
