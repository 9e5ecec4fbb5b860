
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='MachineEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(max_length=10)),
                ('reason', models.CharField(blank=True, max_length=300)),
                ('actor', models.CharField(max_length=150)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name='machine',
            name='address',
            field=models.CharField(blank=True, db_default='', max_length=253),
        ),
        migrations.AddField(
            model_name='machine',
            name='draining',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='machine',
            name='trusted_since',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddConstraint(
            model_name='machine',
            constraint=models.CheckConstraint(condition=models.Q(('draining', False), ('cordoned_at__isnull', False), _connector='OR'), name='draining_is_cordoned'),
        ),
        migrations.AddField(
            model_name='machineevent',
            name='machine',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='events', to='machines.machine'),
        ),
        migrations.AddIndex(
            model_name='machineevent',
            index=models.Index(fields=['machine', 'id'], name='machine_event'),
        ),
    ]
