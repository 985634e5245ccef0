"""Search strategies to compare `model-guided` with. Importing this package registers them by name.

evolutionary   MetaSchedule's own search: generations of mutated schedules inside its cost model
genetic        offspring of the fastest measured schedules, without a cost model
annealing      simulated annealing over the predictions of the cost model
clustering     schedules with good predictions, of which one per cluster is measured, as in Chameleon
grid           an even walk through random samples, sorted by tile sizes
"""

from onefold.baselines.kernel_strategies.cluster_sampling import ClusterSampling
from onefold.baselines.kernel_strategies.genetic_search import GeneticSearch
from onefold.baselines.kernel_strategies.grid_search import GridSearch
from onefold.baselines.kernel_strategies.metaschedule_evolution import MetaScheduleEvolution
from onefold.baselines.kernel_strategies.simulated_annealing import SimulatedAnnealing
from onefold.kernels.strategies import register_strategy

__all__ = ["ClusterSampling", "GeneticSearch", "GridSearch", "MetaScheduleEvolution", "SimulatedAnnealing"]

register_strategy("evolutionary", with_model=MetaScheduleEvolution)
register_strategy("genetic", without_model=GeneticSearch)
register_strategy("annealing", with_model=SimulatedAnnealing)
register_strategy("clustering", with_model=ClusterSampling)
register_strategy("grid", without_model=GridSearch)
