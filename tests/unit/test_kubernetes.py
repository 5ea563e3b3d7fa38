"""The manifests of infra/kubernetes fit the Kubernetes release, the images and each other."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from services.api_keys.keys import Scope, new_key
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import PARTITIONS, Settings
from services.state_stores.catalogue import api_keys, stores

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "infra" / "kubernetes"
KUSTOMIZATIONS = sorted(MANIFESTS.glob("*/kustomization.yaml"))
EVERY_KUSTOMIZATION = pytest.mark.parametrize("kustomization", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
VARIABLES = {f"LOYALTY_{name.upper()}" for name in Settings.model_fields}
KUBERNETES_GUIDES = ("deploy-on-kubernetes", "run-executors-as-pods")
WORKLOADS = ("StatefulSet", "Deployment", "Job")
KUSTOMIZE = next(
    (words for words in (["kubectl", "kustomize"], ["kustomize", "build"]) if shutil.which(words[0])), None
)

Manifest = dict[str, Any]


def version() -> str:
    """The Kubernetes release that the kustomization of the stack names."""
    (found,) = re.findall(r"For Kubernetes (\d+\.\d+)\.", (MANIFESTS / "stack" / "kustomization.yaml").read_text())
    return str(found)


def documents(path: Path) -> list[Manifest]:
    return list(yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))


def manifests(kustomization: Path) -> list[Manifest]:
    """All manifests of a kustomization, including its bases."""
    found: list[Manifest] = []
    for resource in documents(kustomization)[0]["resources"]:
        path = (kustomization.parent / resource).resolve()
        found += manifests(path / "kustomization.yaml") if path.is_dir() else documents(path)
    return found


OWN = [
    manifest
    for path in sorted(MANIFESTS.rglob("*.yaml"))
    if path.stem != "kustomization"
    for manifest in documents(path)
]
EVERY_MANIFEST = pytest.mark.parametrize(
    "manifest", OWN, ids=lambda manifest: f"{manifest['kind']}-{manifest['metadata']['name']}"
)


def pods(found: list[Manifest]) -> list[Manifest]:
    return [manifest["spec"]["template"] for manifest in found if manifest["kind"] in WORKLOADS]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def faults(manifest: Manifest) -> list[str]:
    """The violations of the schema of the release."""
    try:
        kubernetes_validate.validate(manifest, version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


@EVERY_MANIFEST
def test_manifests_are_valid_for_their_kubernetes_release(manifest: Manifest) -> None:
    """Each manifest is valid for the release and has no unknown field."""
    assert [] == faults(manifest)


@pytest.mark.parametrize("change", [{"replicas": "three"}, {"replica": 3}, {"selector": None}])
def test_a_wrong_manifest_is_detected(change: dict[str, Any]) -> None:
    """The validation refuses a wrong type, an unknown field and a missing field."""
    (api,) = [each for each in documents(MANIFESTS / "stack" / "api.yaml") if each["kind"] == "StatefulSet"]
    wrong = {name: value for name, value in {**api["spec"], **change}.items() if value is not None}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**api, "spec": wrong}, version(), strict=True)


@EVERY_KUSTOMIZATION
def test_kustomizations_name_exactly_the_existing_files(kustomization: Path) -> None:
    """Every named file exists, and the kustomization names every manifest of its folder."""
    content = documents(kustomization)[0]
    assert ("kustomize.config.k8s.io/v1beta1", "Kustomization") == (content["apiVersion"], content["kind"])
    named = {
        *content["resources"],
        *(name for each in content.get("configMapGenerator", ()) for name in each.get("envs", ())),
    }
    assert [] == [name for name in named if not (kustomization.parent / name).exists()]
    there = {path.name for path in kustomization.parent.iterdir() if path != kustomization}
    assert there == {name for name in named if "/" not in name}


def test_an_apply_neither_starts_a_stopped_pipeline_nor_waits_for_a_broken_pod() -> None:
    """Without `replicas`, an apply keeps the number of an operator. Parallel sets replace pods that are not ready."""
    sets = {each["metadata"]["name"]: each["spec"] for each in OWN if each["kind"] == "StatefulSet"}
    assert {"pipeline", "api", "kafka", "postgres"} == sets.keys()
    assert "replicas" not in sets["pipeline"]
    assert {"Parallel"} == {spec["podManagementPolicy"] for spec in sets.values()}


@pytest.mark.program
@pytest.mark.skipif(KUSTOMIZE is None, reason="neither kubectl nor kustomize is installed")
def test_a_pipeline_in_maintenance_runs_no_query() -> None:
    """The container waits without probes. It has the volume of the pipeline, and the URL of the ledger besides."""
    command = [*(KUSTOMIZE or ()), str(MANIFESTS / "maintenance")]
    rendered = yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (found,) = [each for each in rendered if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "pipeline")]
    (usual,) = [each for each in documents(MANIFESTS / "stack" / "pipeline.yaml") if each["kind"] == "StatefulSet"]
    (waiting,), (running,) = (each["spec"]["template"]["spec"]["containers"] for each in (found, usual))
    assert usual["spec"]["volumeClaimTemplates"] == found["spec"]["volumeClaimTemplates"]
    assert {"readinessProbe", "livenessProbe"} == running.keys() - waiting.keys()
    assert running["volumeMounts"] == waiting["volumeMounts"]
    (added,) = [each for each in waiting["env"] if each not in running["env"]]
    assert ("LOYALTY_LEDGER_URL", "ledger") == (added["name"], added["valueFrom"]["secretKeyRef"]["name"])


def test_no_probe_ends_a_pipeline_that_starts_for_hours() -> None:
    """A start that learns a schema id reads whole topics, and answers /livez meanwhile. A restart would begin again."""
    (pod,) = pods(documents(MANIFESTS / "stack" / "pipeline.yaml"))
    (container,) = pod["spec"]["containers"]
    paths = {name: probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}
    assert {"readinessProbe": "/readyz", "livenessProbe": "/livez"} == paths


def test_the_pipeline_needs_no_text_of_its_init_containers() -> None:
    """With a secured Kafka, the guide removes them."""
    text = (MANIFESTS / "stack" / "pipeline.yaml").read_text(encoding="utf-8")
    without = re.sub(r"\n      initContainers:(\n {8}.*)+", "", text)
    assert without != text
    for manifest in yaml.safe_load_all(without):
        assert [] == faults(manifest)


def test_the_service_finds_the_driver_of_executors() -> None:
    """The documented label is that of the Service `pipeline`, and the template of the pod has its port."""
    guide = (ROOT / "docs" / "how-to" / "run-executors-as-pods.md").read_text(encoding="utf-8")
    (service,) = [each for each in documents(MANIFESTS / "stack" / "pipeline.yaml") if each["kind"] == "Service"]
    labels = dict(re.findall(r"spark\.kubernetes\.driver\.label\.(\S+)=(\S+)", guide))
    assert service["spec"]["selector"] == labels
    (container,) = documents(MANIFESTS / "pod.yaml")[0]["spec"]["containers"]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == [port["name"] for port in container["ports"]]
    assert f"prometheus.io/port={container['ports'][0]['containerPort']}" in guide


def test_the_driver_of_executors_gets_no_other_secret() -> None:
    """Spark mounts a whole secret. The stack's secrets also have the secret of instances and the URL of the ledger."""
    guide = (ROOT / "docs" / "how-to" / "run-executors-as-pods.md").read_text(encoding="utf-8")
    ((name, folder),) = re.findall(r"spark\.kubernetes\.driver\.secrets\.(\S+)=(\S+)", guide)
    (created,) = re.findall(rf"create secret generic {name} ((?:.*\\\n)*.*)", guide)
    files = re.findall(rf"LOYALTY_\w+_KEY_FILE={folder}/(\S+)", guide)
    assert ["metrics.key", "pseudonym.key"] == files == re.findall(r"--from-file=secrets/kubernetes/(\S+)", created)


def test_no_second_driver_starts_beside_the_first() -> None:
    """The API server refuses a second pod with the same name. A supervisor deletes only a pod that has ended."""
    guide = (ROOT / "docs" / "how-to" / "run-executors-as-pods.md").read_text(encoding="utf-8")
    (name,) = re.findall(r"--conf spark\.kubernetes\.driver\.pod\.name=(\S+)", guide)
    deleted = re.findall(r"delete pods --field-selector (\S+)", guide)
    assert [f"metadata.name={name},status.phase={phase}" for phase in ("Succeeded", "Failed")] == deleted


@EVERY_KUSTOMIZATION
def test_pods_run_the_images_of_the_compose_file(kustomization: Path) -> None:
    """Pods run the images of the compose file, and the kustomization sets the tag of each."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    built = {service["image"].partition(":")[0] for service in compose["services"].values() if "build" in service}
    run = {container["image"] for pod in pods(manifests(kustomization)) for container in containers(pod)}
    assert run <= built
    tagged = {each["name"] for path in KUSTOMIZATIONS for each in documents(path)[0].get("images", ())}
    assert run <= tagged


@EVERY_KUSTOMIZATION
def test_selectors_and_ports_match_pods(kustomization: Path) -> None:
    """Services and budgets select existing pods and ports. Each stateful set has its service."""
    found = manifests(kustomization)
    labels = {pod["metadata"]["labels"]["app.kubernetes.io/name"]: pod for pod in pods(found)}
    services = {each["metadata"]["name"]: each for each in found if each["kind"] == "Service"}
    for service in services.values():
        pod = labels[service["spec"]["selector"]["app.kubernetes.io/name"]]
        ports = {port["name"] for container in containers(pod) for port in container.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for each in found:
        if each["kind"] == "StatefulSet":
            assert (
                each["spec"]["selector"]["matchLabels"].items()
                <= each["spec"]["template"]["metadata"]["labels"].items()
            )
            assert "None" == str(services[each["spec"]["serviceName"]]["spec"]["clusterIP"])
        if each["kind"] == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] in labels


def test_every_service_of_the_compose_file_has_a_manifest() -> None:
    """Each service has a manifest with the same image and command, except jobs and Spark's own cluster."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    running = {
        (name, service["image"].partition(":")[0], *service.get("command", ()))
        for name, service in compose["services"].items()
        if "build" in service and service.get("restart") == "unless-stopped" and not name.startswith("spark-")
    }
    found = {
        (manifest["metadata"]["name"], container["image"], *container.get("command", ()))
        for manifest in OWN
        if manifest["kind"] in WORKLOADS
        for container in manifest["spec"]["template"]["spec"]["containers"]
    }
    assert {"kafka", "postgres", "pipeline", "api", "ledger", "webhooks"} == {name for name, *_ in running}
    assert running == found


def test_documents_create_the_secrets_of_pods() -> None:
    """The documented command creates every secret and every key that a manifest uses."""
    text = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    needed = {
        (reference["name"], reference["key"])
        for manifest in OWN
        if manifest["kind"] in WORKLOADS
        for container in containers(manifest["spec"]["template"])
        for variable in container.get("env", ())
        if (reference := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    assert {("ledger", "url"), ("ledger", "password")} == needed
    mounted = {
        (volume["secret"]["secretName"], item["key"])
        for manifest in OWN
        if manifest["kind"] in WORKLOADS
        for volume in manifest["spec"]["template"]["spec"].get("volumes", ())
        if "secret" in volume
        for item in volume["secret"].get("items", ())
    }
    credentials = {("credentials", "metrics.key"), ("credentials", "instance.secret")}
    assert {("ledger", "pseudonym.key"), *credentials} == mounted
    for name, key in needed | mounted | {("webhooks", "")}:
        (command,) = re.findall(rf"create secret generic {name} ((?:.*\\\n)*.*)", text)
        assert key in command


def test_the_guide_waits_for_the_secret_of_each_api_pod() -> None:
    """The kubelets copy a changed secret at different times. The command reads the file that the API reads."""
    guide = (ROOT / "docs" / "how-to" / "secure-the-api.md").read_text(encoding="utf-8")
    (api,) = [each for each in documents(MANIFESTS / "stack" / "api.yaml") if each["kind"] == "StatefulSet"]
    (container,) = api["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert [variables["LOYALTY_INSTANCE_SECRET_FILE"]] == re.findall(r"exec \$pod -- sha256sum (\S+)", guide)
    labels = dict(each.split("=") for each in re.findall(r"get pods -l (\S+)", guide))
    assert api["spec"]["selector"]["matchLabels"] == labels


def test_callers_have_their_keys_before_an_upgrade_replaces_the_api() -> None:
    """Pods of release 0.1 need no credentials. Without keys, the callers get 401 from the new pods."""
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    steps, _, differences = guide.partition("\n## Upgrade\n")[2].partition("\n### From release 0.1\n")
    introduction, before, replacement = re.split(r"\n1\. |\n(?=3\. )", steps)
    assert "[From release 0.1](#from-release-01)" in introduction
    assert "statefulset/api" not in before
    assert "rollout status statefulset/api" in replacement
    (keys,) = re.findall(r"\n- \*\*Before step 3\*\*(.*?)\n- ", differences, re.DOTALL)
    assert "loyalty keys create" in keys
    assert ["app.kubernetes.io/name notin (api, ledger, webhooks)"] == re.findall(r"apply -k \S+ -l '(.*)'", keys)


def test_the_key_of_prometheus_is_valid_for_a_year() -> None:
    """With an expired key, no alert on the metrics of the API can fire, except a wrong one."""
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    (options,) = re.findall(r"loyalty keys create prometheus (.*?) \|", guide)
    assert "--scope operate --days 365" == options


@EVERY_KUSTOMIZATION
def test_settings_of_pods_exist(kustomization: Path) -> None:
    """Every LOYALTY_ variable of a pod is a setting."""
    texts = [path.read_text(encoding="utf-8") for path in kustomization.parent.iterdir()]
    assert set() == {name for text in texts for name in re.findall(r"LOYALTY_[A-Z_]*[A-Z]", text)} - VARIABLES


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_no_other_service_adds_variables_to_a_pod(path: Path) -> None:
    """For a Service `loyalty-api`, Kubernetes adds LOYALTY_API_PORT, and no process would start."""
    found = documents(path)
    templates = [*pods(found), *(each for each in found if each["kind"] == "Pod")]
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in templates)


def test_one_api_pod_can_hold_all_stores() -> None:
    """The limit is enough for the default number of partitions, and the guide has the formula."""
    ids = FolderSchemaIds()
    held = [store.changelog.partitions or PARTITIONS for store in (*stores(ids), api_keys(ids))]
    (api,) = pods(documents(MANIFESTS / "stack" / "api.yaml"))
    (container,) = api["spec"]["containers"]
    assert 4 * PARTITIONS + 3 == sum(held)
    needed = 150 + 32 * sum(held)
    assert 246 + 128 * PARTITIONS == needed
    assert "1Gi" == container["resources"]["limits"]["memory"]
    assert needed <= 1024
    guide = (ROOT / "docs" / "how-to" / "scale.md").read_text(encoding="utf-8")
    assert f"`LOYALTY_PARTITIONS`: {needed} MiB for {PARTITIONS} partitions" in guide


@pytest.mark.program
def test_the_key_of_an_audit_is_revoked(tmp_path: Path) -> None:
    """The guide reads the id of the key from its file. Otherwise each audit leaves a key that is valid for 90 days."""
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"loyalty audit --api http://api\n.* loyalty keys revoke \$\((.*)\)\n", guide)
    made = new_key("audit", [Scope.BALANCE_READ], [], now=0, valid_for=1)
    (file := tmp_path / "secrets" / "kubernetes" / "api.key").parent.mkdir(parents=True)
    file.write_text(f"{made.text}\n")
    shown = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f"{made.key.key_id}\n" == shown


def test_only_the_volumes_of_removed_api_pods_are_deleted() -> None:
    """They have cards. Kafka has the data of the API, but not the checkpoints and the archive of a stopped pipeline."""
    sets = [manifest for manifest in OWN if manifest["kind"] == "StatefulSet"]
    policies = {each["metadata"]["name"]: each["spec"].get("persistentVolumeClaimRetentionPolicy") for each in sets}
    assert {"whenDeleted": "Retain", "whenScaled": "Delete"} == policies.pop("api")
    assert {"pipeline"} <= policies.keys()
    assert {None} == {*policies.values()}


def test_the_pipeline_reserves_the_disk_of_its_node() -> None:
    """Spark keeps a copy of its state in /tmp. Without a request, the node can have no space for it."""
    (pod,) = pods(documents(MANIFESTS / "stack" / "pipeline.yaml"))
    (container,) = pod["spec"]["containers"]
    assert "10Gi" == container["resources"]["requests"]["ephemeral-storage"]
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    assert "`ephemeral-storage` in `pipeline.yaml` (10 GiB)" in guide


def test_the_guides_write_secrets_only_into_an_ignored_folder() -> None:
    """A file in the checkout could be committed, and others could read it."""
    assert {"/secrets/", ".env", "var/"} <= {*(ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    guides = [(ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8") for name in KUBERNETES_GUIDES]
    files = [file for guide in guides for file in re.findall(r"(?: > |--from-file=)(\w[\w./]+\.(?:key|secret))", guide)]
    assert 10 == len(files)
    assert all(file.startswith("secrets/kubernetes/") for file in files)
    assert guides[0].index("(umask 077; mkdir -p secrets/kubernetes)") < guides[0].index(" > secrets/kubernetes/")


@pytest.mark.skipif(not shutil.which("openssl"), reason="a command of the guide needs openssl")
def test_a_repeated_step_keeps_the_keys(tmp_path: Path) -> None:
    """The cluster keeps its first secret, and a later command of a guide can use the file. An empty file is no key."""
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ {8}(.*(?:urandom|openssl).* > \S+)$", guide, re.MULTILINE)
    folder = tmp_path / "secrets" / "kubernetes"
    folder.mkdir(parents=True)
    (folder / "pseudonym.key").touch()

    def keys_after_the_commands() -> dict[str, bytes]:
        for command in commands:
            subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    keys = keys_after_the_commands()
    assert {"pseudonym.key": 32, "instance.secret": 65, "metrics.key": 65} == {
        name: len(key) for name, key in keys.items()
    }
    assert keys == keys_after_the_commands()


@EVERY_KUSTOMIZATION
def test_pods_are_restricted(kustomization: Path) -> None:
    """Pods satisfy the restricted policy: no root, no rights, writable volumes only, and a memory limit."""
    for pod in pods(manifests(kustomization)):
        assert (True, 10001) == tuple(pod["spec"]["securityContext"][key] for key in ("runAsNonRoot", "runAsUser"))
        assert "RuntimeDefault" == pod["spec"]["securityContext"]["seccompProfile"]["type"]
        for container in containers(pod):
            context = container["securityContext"]
            assert (False, True) == (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"])
            assert ["ALL"] == context["capabilities"]["drop"]
            assert {"memory"} <= container["resources"]["limits"].keys()


def test_peers_reach_each_api_pod_by_its_name() -> None:
    """Peers reach a pod by its own name. The headless service includes pods that still restore."""
    found = manifests(MANIFESTS / "stack" / "kustomization.yaml")
    (api,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "api")]
    (container,) = api["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    service = api["spec"]["serviceName"]
    assert f"http://$(POD_NAME).{service}:8080" == variables["LOYALTY_APPLICATION_SERVER"]
    assert list(variables).index("POD_NAME") < list(variables).index("LOYALTY_APPLICATION_SERVER")
    (headless,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("Service", service)]
    assert headless["spec"]["publishNotReadyAddresses"]
    volume = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "state")
    assert "/data/state" == volume


@pytest.mark.program
@EVERY_KUSTOMIZATION
@pytest.mark.skipif(KUSTOMIZE is None, reason="neither kubectl nor kustomize is installed")
def test_kustomize_renders_the_manifests(kustomization: Path) -> None:
    """kustomize renders the same number of valid manifests, apart from config maps."""  # noqa: D403  # a program
    command = [*(KUSTOMIZE or ()), str(kustomization.parent)]
    rendered = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    kinds = sorted(each["kind"] for each in rendered if each["kind"] != "ConfigMap")
    assert sorted(each["kind"] for each in manifests(kustomization)) == kinds
    assert [] == [fault for manifest in rendered for fault in faults(manifest)]


@pytest.mark.parametrize(
    ("folder", "parts"),
    [("stack", ["pipeline", "ledger"]), ("with-webhooks", ["pipeline", "ledger", "webhooks"])],
)
def test_the_api_finds_the_other_parts(folder: str, parts: list[str]) -> None:
    """The status has each part that runs. Each URL is a port of a service."""
    kustomization = MANIFESTS / folder / "kustomization.yaml"
    ports = {
        f"http://{each['metadata']['name']}:{port['port']}"
        for each in manifests(kustomization)
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    (generator,) = documents(kustomization)[0]["configMapGenerator"]
    files = [(kustomization.parent / name).read_text(encoding="utf-8") for name in generator.get("envs", ())]
    settings = "\n".join([*files, *generator.get("literals", ())])
    (line,) = re.findall(r"^LOYALTY_STATUS_URLS=(.*)$", settings, re.MULTILINE)
    urls = dict(each.split("=") for each in line.split())
    assert parts == [*urls]
    assert ports >= {*urls.values()}


@EVERY_KUSTOMIZATION
def test_pods_demand_credentials(kustomization: Path) -> None:
    """The API knows its callers, and each server of metrics has a key. Each file of a secret is mounted there."""
    for pod in pods(manifests(kustomization)):
        for container in containers(pod):
            variables = {each["name"]: each.get("value", "") for each in container.get("env", ())}
            serves_metrics = "metrics" in {port["name"] for port in container.get("ports", ())}
            # The API asks the others for their metrics.
            assert (serves_metrics or "api" == container["name"]) == ("LOYALTY_METRICS_KEY_FILE" in variables)
            assert ("api" == container["name"]) == ("LOYALTY_INSTANCE_SECRET_FILE" in variables)
            assert (container["name"] in ("pipeline", "api", "ledger")) == ("LOYALTY_PSEUDONYM_KEY_FILE" in variables)
            mounts = [mount["mountPath"] for mount in container.get("volumeMounts", ()) if mount.get("readOnly")]
            files = [value for name, value in variables.items() if name.endswith("_FILE")]
            assert all(any(value.startswith(f"{mount}/") for mount in mounts) for value in files)
    settings = (MANIFESTS / "stack" / "settings.env").read_text(encoding="utf-8")
    assert "LOYALTY_API_ACCESS=authenticated\n" in settings
