"""What we use of the published types of Kubernetes and KubeRay, as JSON schemas that allow nothing else.

From the API reference of Kubernetes 1.34 (batch/v1 Job, core/v1 PodSpec and ConfigMap) and the CRD of KubeRay 1.5
(ray.io/v1 RayJob): types, required fields and the values that an enumeration allows.
"""

from __future__ import annotations

from collections.abc import Mapping

Schema = dict[str, object]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
# DNS labels; names of containers, volumes and most objects.
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}


def an_object(properties: Mapping[str, object], *required: str) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def a_list(of: Schema, *, at_least: int = 0) -> Schema:
    return {"type": "array", "items": of, "minItems": at_least}


METADATA = an_object({"name": NAME, "labels": TEXTS, "annotations": TEXTS}, "name")
LABELS = an_object({"labels": TEXTS})

ENVIRONMENT: Schema = {
    "oneOf": [
        an_object({"name": TEXT, "value": TEXT}, "name", "value"),
        an_object(
            {
                "name": TEXT,
                "valueFrom": an_object(
                    {
                        "secretKeyRef": an_object(
                            {
                                "name": NAME,
                                "key": {"type": "string", "pattern": "^[-._a-zA-Z0-9]+$"},
                                "optional": FLAG,
                            },
                            "key",
                        )
                    },
                    "secretKeyRef",
                ),
            },
            "name",
            "valueFrom",
        ),
    ]
}
CONTAINER = an_object(
    {
        "name": NAME,
        "image": TEXT,
        "command": a_list(TEXT),
        "args": a_list(TEXT),
        "env": a_list(ENVIRONMENT),
        "resources": an_object({"limits": {"type": "object", "additionalProperties": COUNT}}),
        "volumeMounts": a_list(
            an_object(
                {"name": NAME, "mountPath": {"type": "string", "pattern": "^/[^:]*$"}, "readOnly": FLAG},
                "name",
                "mountPath",
            )
        ),
    },
    "name",
)
SOURCES: Mapping[str, Schema] = {
    "configMap": an_object({"name": NAME}, "name"),
    "secret": an_object({"secretName": NAME}, "secretName"),
    "persistentVolumeClaim": an_object({"claimName": NAME, "readOnly": FLAG}, "claimName"),
    "hostPath": an_object({"path": TEXT, "type": {"enum": ["Directory", "File"]}}, "path"),
    "emptyDir": an_object({"medium": {"enum": ["", "Memory"]}}),
}
VOLUME: Schema = {"oneOf": [an_object({"name": NAME, name: SOURCES[name]}, "name", name) for name in SOURCES]}
ANTI_AFFINITY = an_object(
    {
        "podAntiAffinity": an_object(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": a_list(
                    an_object(
                        {"labelSelector": an_object({"matchLabels": TEXTS}), "topologyKey": TEXT},
                        "topologyKey",
                    )
                )
            }
        )
    }
)
POD = {
    "restartPolicy": {"enum": ["Always", "OnFailure", "Never"]},
    "terminationGracePeriodSeconds": COUNT,
    "affinity": ANTI_AFFINITY,
    "containers": a_list(CONTAINER, at_least=1),
    "volumes": a_list(VOLUME),
}
# A Job's pods may not be restarted in place for ever; with a failure policy not at all.
JOB_POD = an_object({**POD, "restartPolicy": {"enum": ["Never"]}}, "containers", "restartPolicy")
FAILURE_RULE = an_object(
    {
        "action": {"enum": ["FailJob", "FailIndex", "Ignore", "Count"]},
        "onExitCodes": an_object(
            {
                "containerName": NAME,
                "operator": {"enum": ["In", "NotIn"]},
                "values": {"type": "array", "items": COUNT, "minItems": 1, "maxItems": 255},
            },
            "operator",
            "values",
        ),
    },
    "action",
)
KUBERNETES_JOB = an_object(
    {
        "apiVersion": {"const": "batch/v1"},
        "kind": {"const": "Job"},
        "metadata": METADATA,
        "spec": an_object(
            {
                "backoffLimit": COUNT,
                "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
                "podFailurePolicy": an_object({"rules": a_list(FAILURE_RULE)}, "rules"),
                "template": an_object({"metadata": LABELS, "spec": JOB_POD}, "spec"),
            },
            "template",
        ),
    },
    *("apiVersion", "kind", "metadata", "spec"),
)
CONFIG_MAP = an_object(
    {
        "apiVersion": {"const": "v1"},
        "kind": {"const": "ConfigMap"},
        "metadata": METADATA,
        "data": {
            "type": "object",
            "propertyNames": {"pattern": "^[-._a-zA-Z0-9]+$"},
            "additionalProperties": TEXT,
        },
    },
    *("apiVersion", "kind", "metadata"),
)
RAY_POD = an_object({"metadata": LABELS, "spec": an_object(POD, "containers")})
RAY_JOB = an_object(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": an_object({"name": {**NAME, "maxLength": 41}, "labels": TEXTS}, "name"),
        "spec": an_object(
            {
                "entrypoint": TEXT,
                "backoffLimit": COUNT,
                "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
                "shutdownAfterJobFinishes": FLAG,
                "rayClusterSpec": an_object(
                    {
                        "headGroupSpec": an_object(
                            {"rayStartParams": TEXTS, "template": RAY_POD}, "template"
                        ),
                        "workerGroupSpecs": a_list(
                            an_object(
                                {
                                    "groupName": NAME,
                                    "replicas": COUNT,
                                    "minReplicas": COUNT,
                                    "maxReplicas": COUNT,
                                    "rayStartParams": TEXTS,
                                    "template": RAY_POD,
                                },
                                *("groupName", "maxReplicas", "minReplicas", "template"),
                            )
                        ),
                    },
                    "headGroupSpec",
                ),
            },
        ),
    },
    *("apiVersion", "kind", "metadata", "spec"),
)
