import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('machines', '0001_initial'),
        ('runs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Stem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('stem', models.CharField(max_length=115)),
                ('namespace', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='machines.namespace')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='stems', to='runs.run')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('namespace', 'stem'), name='stem_unique')],
            },
        ),
        migrations.RunSQL(
            """INSERT INTO runs_stem (namespace_id, run_id, stem)
            SELECT namespace_id, id, name FROM runs_run WHERE deleted_at IS NULL""",
            migrations.RunSQL.noop,
        ),
    ]
