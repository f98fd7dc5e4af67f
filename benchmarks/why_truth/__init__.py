"""How often ``halfguard why`` is right, on failing and healthy scripts and on those of other projects."""
