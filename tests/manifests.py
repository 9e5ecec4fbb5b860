"""Manifests read as the command line reads them."""

import pytest
from click.testing import CliRunner, Result

from astraconsole.cli.main import astra
from astraconsole.cli.manifests.importing import import_manifest
from astraconsole.cli.manifests.reading import Imported, Refused
from runs.spec import parse_run


def imported(text: str, image: str = "busybox") -> Imported:
    """The only run of a manifest, which the console takes."""
    [run] = import_manifest(text, image).runs
    parse_run(run.run)
    return run


def refusal(text: str) -> str:
    with pytest.raises(Refused) as refused:
        import_manifest(text)
    return str(refused.value)


def left_out(run: Imported) -> dict[str, str]:
    return {item.path: item.why for item in run.left_out}


def command(*words: str, text: str) -> Result:
    return CliRunner().invoke(astra, ["import", *words, "-"], input=text)


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: Train_1, namespace: ml}
spec:
  activeDeadlineSeconds: 30
  backoffLimit: 2
  template:
    spec:
      restartPolicy: Never
      securityContext: {runAsUser: 1000}
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, disk: ssd}
      initContainers: [{name: i, image: x}]
      volumes:
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}
        - {name: data, persistentVolumeClaim: {claimName: imagenet}}
      containers:
        - name: t
          image: registry.example.com/t:1
          command: [python, train.py]
          args: ["--out", "$OUT"]
          workingDir: /app
          imagePullPolicy: Always
          env: [{name: OUT, value: /out}, {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]
          volumeMounts: [{name: shm, mountPath: /dev/shm}, {name: data, mountPath: /data}]
          resources:
            requests: {cpu: 500m, memory: 16G, rdma/hca: 1}
            limits: {cpu: "2", memory: 16G, nvidia.com/gpu: 2}
        - {name: sidecar, image: y}
"""
