"""What an account may do in a namespace, as the API server says it when it is asked."""

from typing import Any

from jobs.kube.requests import Requests

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LOCAL_REVIEWS = "/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"


class AccessReviews:
    """Asks, by the requests of a cluster. A permission is a verb, a group, a resource, and the name
    of one object or nothing."""

    def __init__(self, requests: Requests, namespace: str):
        self._requests, self._namespace = requests, namespace

    def mine(self, verb: str, group: str, resource: str, name: str = "") -> bool:
        """Whether this account may do that in the namespace, to one object where it is named."""
        spec = {"resourceAttributes": self._asked(verb, group, resource, name)}
        return self._allowed(_REVIEWS, {"kind": "SelfSubjectAccessReview", "spec": spec})

    def of_account(
        self, account: str, verb: str, group: str, resource: str, name: str = ""
    ) -> bool:
        """The same of a ServiceAccount of the namespace. Raises ClusterError where this account may
        not ask that."""
        namespace = self._namespace
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        spec = {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": [*groups, "system:authenticated"],
            "resourceAttributes": self._asked(verb, group, resource, name),
        }
        review = {
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": namespace},
            "spec": spec,
        }
        return self._allowed(_LOCAL_REVIEWS.format(namespace=namespace), review)

    def _allowed(self, path: str, review: dict[str, Any]) -> bool:
        body = {"apiVersion": "authorization.k8s.io/v1", **review}
        return bool(self._requests.json("POST", path, body)["status"]["allowed"])

    def _asked(self, verb: str, group: str, resource: str, name: str) -> dict[str, str]:
        asked = {"namespace": self._namespace, "verb": verb, "group": group, "resource": resource}
        return asked | ({"name": name} if name else {})
