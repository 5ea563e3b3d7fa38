"""Everything around the system: set-up, the local stack, the demo, images, contracts and generated documents."""
