"""What a pod is to run arrives in its launcher unchanged, whatever the kubelet expands in arguments."""

import json

from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.placement import Share
from longshore.scheduler.backends.kubernetes.pods import PodPart, launcher_spec, pod_manifest
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings
from longshore.scheduler.backends.protocol import Attempt
from tests.kubernetes_double.kubelet import expanded

PLACEMENT = (Share("a", (0, 1)),)
PART = PodPart(0, PLACEMENT[0], 0, ())
TEXTS = st.one_of(
    st.text('$()ab"\\ ', max_size=12),
    st.sampled_from(["$$", "$(HOME)", "$$(HOME)", "pa$$word", "echo $$; kill $(cat pid)", "$(", "${X}", "\\u0024"]),
)


@given(st.lists(TEXTS, min_size=1, max_size=3), TEXTS, st.dictionaries(st.sampled_from(["A", "HOME"]), TEXTS))
def test_commands_folders_and_variables_arrive_as_they_are(
    command: list[str], folder: str, environment: dict[str, str]
) -> None:
    attempt = Attempt("ls-job-1", "job", 1, tuple(command), folder, environment)
    settings = KubernetesSettings(image="x")
    container = pod_manifest(attempt, PLACEMENT, PART, settings)["spec"]["containers"][0]
    kubelets = {"HOME": "/root", "PATH": "/bin", "cat pid": "no"}
    (argument,) = container["args"]
    arrived = json.loads(expanded(argument, kubelets))
    assert arrived == json.loads(json.dumps(launcher_spec(attempt, PLACEMENT, PART, settings)))
    assert [expanded(text, kubelets) for text in container["command"]] == container["command"]
