"""Publishing finished folders on the Hugging Face Hub, and fetching them."""

from manifests.hub import Hub
from manifests.publish.publishing import Published, Pulled, publish, pull

__all__ = ["Hub", "Published", "Pulled", "publish", "pull"]
