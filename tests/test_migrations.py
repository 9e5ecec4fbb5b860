"""What the models say and what the migrations make is the same."""

import pytest
from django.core.management import call_command


@pytest.mark.django_db
def test_no_model_has_changed_without_a_migration() -> None:
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
