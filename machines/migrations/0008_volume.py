

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0007_samples'),
        ('tenancy', '0002_device_login'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Volume',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.UUIDField(default=uuid.uuid4, unique=True)),
                ('kind', models.CharField(max_length=10)),
                ('name', models.CharField(max_length=63)),
                ('form', models.CharField(choices=[('folder', 'Folder of the machine'), ('nfs', 'Folder of a file server (NFS)'), ('copy', 'Copy of a remote source')], max_length=10)),
                ('source', models.CharField(max_length=1000)),
                ('read_only', models.BooleanField(default=False)),
                ('version', models.CharField(blank=True, max_length=63)),
                ('credential', models.CharField(blank=True, max_length=63)),
                ('checksum', models.CharField(blank=True, max_length=80)),
                ('endpoint', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField()),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='volumes', to='tenancy.workspace')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('workspace', 'kind', 'name'), name='volume_name_unique')],
            },
        ),
    ]
