"""What the API server's double refuses with status 403: rights, Pod Security, and a quota of pods.

The words are those of kube-apiserver. Of Pod Security it knows what a pod of a training job may come to hold: host
namespaces, hostPath volumes, host ports, privileged containers and added capabilities at level `baseline`, and at level
`restricted` what has to be set beside. Left out: seccomp, AppArmor, SELinux, sysctls and /proc at level `baseline`,
users and kinds of volumes at level `restricted`, and the quota of anything but the number of pods.
"""

from collections.abc import Iterator

from tests.kubernetes_double.objects import ApiError, Object, Objects, is_over

# Capabilities that level `baseline` lets a container add.
_USUAL = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip


class Admission:
    """Decides what may be done; everything, until something is forbidden.

    Args:
        objects: The cluster's objects.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.level = "privileged"  # of Pod Security, in all namespaces
        self.most_pods: int | None = None  # that have not ended, in each namespace
        self.withheld: set[tuple[str, str]] = set()  # rights that are not granted: verb and resource

    def check_right(self, verb: str, group: str, resource: str, namespace: str) -> None:
        """Refuse what the caller has no right to."""
        if (verb, resource) in self.withheld:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            user = "system:serviceaccount:longshore:longshore"
            raise forbidden(
                f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}" '
                f"{where}"
            )

    def check_pod(self, namespace: str, pod: Object) -> None:
        """Refuse a pod that breaks the rules of its namespace, or is one too many."""
        name = pod["metadata"]["name"]
        broken = [] if self.level == "privileged" else list(_beyond_baseline(pod["spec"]))
        broken += list(_beyond_restricted(pod["spec"])) if self.level == "restricted" else []
        if broken:
            level = f'violates PodSecurity "{self.level}:latest"'
            raise forbidden(f'pods "{name}" is forbidden: {level}: {", ".join(broken)}')
        used = sum(not is_over(other) for other in self._objects.each("pods", namespace))
        if self.most_pods is not None and used >= self.most_pods:
            raise forbidden(
                f'pods "{name}" is forbidden: exceeded quota: pods, requested: pods=1, used: pods={used}, '
                f"limited: pods={self.most_pods}"
            )


def forbidden(message: str) -> ApiError:
    """Return the answer to what is not allowed."""
    return ApiError(403, "Forbidden", message)


def _beyond_baseline(spec: Object) -> Iterator[str]:
    namespaces = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if namespaces:
        yield f"host namespaces ({', '.join(f'{name}=true' for name in namespaces)})"
    paths = [f'"{volume["name"]}"' for volume in spec.get("volumes", []) if "hostPath" in volume]
    if paths:
        yield f"hostPath volumes (volume{'s' * (len(paths) > 1)} {', '.join(paths)})"
    for container in spec["containers"]:
        name, context = f'container "{container["name"]}"', container.get("securityContext", {})
        if context.get("privileged"):
            yield f"privileged ({name} must not set securityContext.privileged=true)"
        added = sorted(set(context.get("capabilities", {}).get("add", [])) - _USUAL)
        if added:
            text = ", ".join(f'"{capability}"' for capability in added)
            yield f"non-default capabilities ({name} must not include {text} in securityContext.capabilities.add)"
        ports = [str(port["hostPort"]) for port in container.get("ports", []) if port.get("hostPort")]
        if ports:
            yield f"hostPort ({name} uses hostPort{'s' * (len(ports) > 1)} {', '.join(ports)})"


def _beyond_restricted(spec: Object) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    for container in spec["containers"]:
        name, context = f'container "{container["name"]}"', container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield (
                f"allowPrivilegeEscalation != false ({name} must set securityContext.allowPrivilegeEscalation=false)"
            )
        if "ALL" not in context.get("capabilities", {}).get("drop", []):
            yield f'unrestricted capabilities ({name} must set securityContext.capabilities.drop=["ALL"])'
        if not context.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield f"runAsNonRoot != true (pod or {name} must set securityContext.runAsNonRoot=true)"
        if not context.get("seccompProfile", pod.get("seccompProfile")):
            kinds = '"RuntimeDefault" or "Localhost"'
            yield f"seccompProfile (pod or {name} must set securityContext.seccompProfile.type to {kinds})"
