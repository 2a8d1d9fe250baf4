"""Private knowledge as one continuous token: domain experts, projectors, a router without training."""
