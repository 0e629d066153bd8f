"""Silver of one pipeline file as a declarative pipeline; docs/declarative.md says when to choose it.

The bundle deploys one such pipeline for each name in the variable declarative_silver. The pipeline file, and
the schemas of the deployment, come by configuration (resources/per_pipeline/silver.pipeline.yml).
"""

from cdc_lib.declarative import register

register(spark)  # noqa: F821  whoever runs the pipeline puts the session here
