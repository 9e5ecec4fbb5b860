import django.db.models.deletion
from django.db import migrations, models

import astraconsole.sql


class Migration(migrations.Migration):

    dependencies = [
        ('tenancy', '0002_device_login'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tx', models.BigIntegerField(db_default=astraconsole.sql.TransactionId())),
                ('kind', models.CharField(max_length=12)),
                ('name', models.CharField(max_length=200)),
                ('state', models.CharField(max_length=12)),
                ('reason', models.CharField(max_length=400)),
                ('actor', models.CharField(max_length=150)),
                ('at', models.DateTimeField()),
                ('workspace', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.workspace')),
            ],
            options={
                'indexes': [models.Index(fields=['workspace', 'tx', 'id'], name='audit_event')],
            },
        ),
    ]
