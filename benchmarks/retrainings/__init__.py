"""Retrainings of networks in their ImageNet layout, watched from outside."""
