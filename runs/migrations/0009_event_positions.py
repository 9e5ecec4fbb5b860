import django.db.models.deletion
from django.db import migrations, models

import astraconsole.sql


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0009_event_positions'),
        ('runs', '0008_saved'),
        ('tenancy', '0003_auditevent'),
    ]

    operations = [
        migrations.AddField(
            model_name='transition',
            name='tx',
            field=models.BigIntegerField(db_default=astraconsole.sql.TransactionId()),
        ),
        migrations.AddField(
            model_name='transition',
            name='workspace',
            field=models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.workspace'),
        ),
        migrations.RunSQL(
            """DELETE FROM runs_transition t WHERE NOT EXISTS (SELECT FROM runs_run r WHERE r.id = t.run_id);
            UPDATE runs_transition t SET workspace_id = r.workspace_id FROM runs_run r WHERE r.id = t.run_id""",
            migrations.RunSQL.noop,
        ),
        migrations.AlterField(
            model_name='transition',
            name='workspace',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.workspace'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(fields=['workspace', 'name'], name='run_named'),
        ),
        migrations.AddIndex(
            model_name='transition',
            index=models.Index(fields=['workspace', 'tx', 'id'], name='transition_event'),
        ),
        migrations.AddIndex(
            model_name='transition',
            index=models.Index(condition=models.Q(('worker', None)), fields=['workspace', 'tx', 'id'], name='transition_run_event'),
        ),
        migrations.AddIndex(
            model_name='transition',
            index=models.Index(condition=models.Q(models.Q(('actor__startswith', 'machine '), _negated=True), models.Q(('actor', 'scheduler'), _negated=True)), fields=['workspace', 'actor', 'tx', 'id'], name='transition_person'),
        ),
    ]
