"""The manifest of Amazon SageMaker's path."""

from __future__ import annotations

from ...manifest import Feature, Route

FEATURE = Feature(
    name="sagemaker",
    summary="serves Amazon SageMaker's single path, and passes each request to the endpoint that fits its body",
    title="Amazon SageMaker",
    reference="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html",
    routes=(Route("POST", "/invocations", "api:handle"),),
)
