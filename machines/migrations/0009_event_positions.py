import django.db.models.deletion
from django.db import migrations, models

import astraconsole.sql


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0008_volume'),
    ]

    operations = [
        migrations.AddField(
            model_name='machineevent',
            name='tx',
            field=models.BigIntegerField(db_default=astraconsole.sql.TransactionId()),
        ),
        migrations.AddField(
            model_name='machineevent',
            name='cluster',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='machines.cluster'),
        ),
        migrations.RunSQL(
            """UPDATE machines_machineevent e SET cluster_id = m.cluster_id
            FROM machines_machine m WHERE m.id = e.machine_id;
            SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED""",
            migrations.RunSQL.noop,
        ),
        migrations.AlterField(
            model_name='machineevent',
            name='cluster',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='machines.cluster'),
        ),
        migrations.AddIndex(
            model_name='machineevent',
            index=models.Index(fields=['cluster', 'tx', 'id'], name='machine_event_of_cluster'),
        ),
    ]
