"""The manifest of Amazon SageMaker's path."""

from __future__ import annotations

from ...manifest import Feature, Route

FEATURE = Feature(
    name="sagemaker",
    summary="Amazon SageMaker's one path for every request, which the endpoint that the body is for answers",
    title="Amazon SageMaker",
    reference="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html",
    routes=(Route("POST", "/invocations", "api:handle"),),
)
