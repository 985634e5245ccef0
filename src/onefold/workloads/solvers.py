"""Jobs that train no network, as plain functions: Jacobi, sparse k-means and breadth-first search.

Those of the Rodinia suite with which PipeTune shows that tuning system parameters is not limited to deep learning:

    onefold.tune(jacobi, JACOBI, objective=Objective(minimize="residual"), max_epochs=40)

Each yields after every iteration, so that knobs of the process are tuned while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from onefold import Choice, Config, Float, Int, Space

JACOBI = Space(side=Choice(256, 512, 1024, default=512), relaxation=Float(0.5, 1.0, default=0.9))
SPARSE_KMEANS = Space(clusters=Int(2, 32, default=8), samples=Choice(5_000, 20_000, default=20_000))
BREADTH_FIRST_SEARCH = Space(nodes=Choice(50_000, 200_000, default=200_000), degree=Int(2, 16, default=8))
SWEEPS = 10  # of Jacobi between two values
FEATURES, NONZEROS = 1000, 20  # of a sparse sample


def jacobi(config: Config) -> Iterator[dict[str, float]]:
    """Solve Laplace's equation on a square whose upper edge is hot; yield the residual."""
    grid = torch.zeros(1, 1, config.side, config.side)
    grid[..., 0, :] = 1.0
    kernel = torch.tensor([[0.0, 0.25, 0.0], [0.25, 0.0, 0.25], [0.0, 0.25, 0.0]])[None, None]
    inner = grid[..., 1:-1, 1:-1]
    with torch.no_grad():
        while True:
            for _ in range(SWEEPS):
                change = functional.conv2d(grid, kernel) - inner
                inner += config.relaxation * change
            yield {"residual": float(change.abs().mean())}


def sparse_kmeans(config: Config) -> Iterator[dict[str, float]]:
    """Cluster sparse samples on the sphere by k-means; yield their mean cosine distance from the centroids."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randint(FEATURES, (config.samples, NONZEROS), generator=generator)
    rows = torch.arange(config.samples).repeat_interleave(NONZEROS)
    values = torch.full((config.samples * NONZEROS,), NONZEROS**-0.5)
    indices = torch.stack([rows, columns.flatten()])
    shape = config.samples, FEATURES
    samples = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True).coalesce()
    centroids = samples.to_dense()[torch.randperm(config.samples, generator=generator)[: config.clusters]]
    while True:
        centroids = functional.normalize(centroids, dim=1)
        similarity, labels = torch.sparse.mm(samples, centroids.T).max(dim=1)
        sums = torch.zeros(config.clusters * FEATURES)
        sums.index_add_(0, labels[rows] * FEATURES + columns.flatten(), values)
        centroids = sums.reshape(config.clusters, FEATURES)
        yield {"distance": float(1.0 - similarity.mean())}


def breadth_first_search(config: Config) -> Iterator[dict[str, float]]:
    """Search a random graph from one node after the other; yield the mean depth of the nodes."""
    generator = torch.Generator().manual_seed(0)
    neighbors = torch.randint(config.nodes, (config.nodes, config.degree), generator=generator)
    start = 0
    while True:
        depths = torch.full((config.nodes,), -1)
        frontier, depth = torch.tensor([start % config.nodes]), 0
        while len(frontier):
            depths[frontier] = depth
            reached = neighbors[frontier].flatten()
            frontier = torch.unique(reached[depths[reached] < 0])
            depth += 1
        start += 1
        yield {"depth": float(depths[depths >= 0].float().mean())}
