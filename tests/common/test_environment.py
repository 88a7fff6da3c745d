"""What is known of the machine."""

import pytest

from macaron_fairseq.common import environment


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("150000 100000", 2),  # of a container with one and a half
        ("20000 100000", 1),
        ("6400000 100000", 8),  # more than there are
        ("max 100000", 8),
        (None, 8),  # outside of containers
    ],
)
def test_a_container_may_have_fewer_cores_than_its_machine(quota, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr(environment, "CGROUP", tmp_path)
    if quota:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert environment.available_cores() == cores
    (tmp_path / "cpu.max").unlink(missing_ok=True)
    if quota:  # as the first version of cgroups says it
        (tmp_path / "cpu").mkdir()
        for name, value in zip(
            ("quota", "period"), quota.replace("max", "-1").split(), strict=True
        ):
            (tmp_path / "cpu" / f"cpu.cfs_{name}_us").write_text(f"{value}\n")
        assert environment.available_cores() == cores
