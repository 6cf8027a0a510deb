from typing import Any

class NoPrivacyQuantileEstimatorQuery:
    def __init__(
        self,
        initial_estimate: float,
        target_quantile: float,
        learning_rate: float,
        geometric_update: bool = ...,
    ) -> None: ...
    def preprocess_record(self, params: Any, record: Any) -> Any: ...
    def get_noised_result(
        self, sample_state: Any, global_state: Any
    ) -> tuple[Any, Any, Any]: ...
