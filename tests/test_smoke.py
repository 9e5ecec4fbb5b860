import pytest
from machines.models import Cluster
@pytest.mark.django_db
def test_db():
    assert Cluster.objects.count() == 0
