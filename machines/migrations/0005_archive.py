from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0004_data_on_machine'),
    ]

    operations = [
        migrations.AddField(
            model_name='assignment',
            name='archives',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
