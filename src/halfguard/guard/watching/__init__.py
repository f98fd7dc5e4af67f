"""Look inside sampled steps of a running job. All other steps run as if nobody watched."""
