"""Between the local state and the bucket: upload, images, lease, restore."""
