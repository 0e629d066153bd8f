# Databricks notebook source
# MAGIC %md
# MAGIC # Quickstart: from a pipeline file to silver
# MAGIC
# MAGIC A pipeline file names a database, the tables to capture and where they go. This notebook checks the source, says
# MAGIC what the first run would do, runs it, and looks at what arrived. Run it again whenever you like: it goes on where
# MAGIC it stopped.
# MAGIC
# MAGIC On Databricks, deploy the bundle first (`docs/databricks.md`): it makes the schemas, the staging volume and the
# MAGIC secret scope that are named below. On a laptop:
# MAGIC `python notebooks/run.py notebooks/quickstart.py pipeline=pipelines/shop.yml`

# COMMAND ----------

# MAGIC %pip install --quiet "..[postgresql,databricks]"

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

dbutils.widgets.text("pipeline", "../pipelines/shop.yml", "Pipeline file")
dbutils.widgets.text("catalog", "", "Catalog (empty: as the file says)")
dbutils.widgets.text("prefix", "", "Prefix of the schemas, as dev_ann_")
dbutils.widgets.text("secrets", "", "Secret scope (empty: environment)")

# COMMAND ----------

import cdc_lib

pipeline = cdc_lib.open_pipeline(
    dbutils.widgets.get("pipeline"),
    catalog=dbutils.widgets.get("catalog"),
    prefix=dbutils.widgets.get("prefix"),
    secrets=dbutils.widgets.get("secrets"),
)
print(f"Tables go to {', '.join(pipeline.schemas.values())}.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Is the source ready?
# MAGIC
# MAGIC Each finding comes with the SQL that mends it. Nothing is written, here or there.

# COMMAND ----------

findings = [finding for finding in pipeline.check() if finding.severity != "ok"]
for finding in findings:
    print(f"{finding.severity}: {finding.subject}: {finding.message}")
    if finding.remedy:
        print(f"  to do: {finding.remedy}")
errors = [finding for finding in findings if finding.severity == "error"]
assert not errors, "mend the errors above, then go on"
print("Ready.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What would the run do?

# COMMAND ----------

plan = pipeline.plan()
for table in plan.tables:
    rows = "" if table.rows is None else f", about {table.rows:,} rows"
    print(f"{table.table}: {table.action}{rows}")
for stop in plan.stops:
    print(stop)
assert plan.good, "the run would end; the reason is above"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Run
# MAGIC
# MAGIC Tables are read piece by piece while changes to them are captured; nobody is locked out. The run ends when it has
# MAGIC caught up with what was there when it began.

# COMMAND ----------

result = pipeline.run()
print(f"{result.outcome} after {result.metrics['seconds']:.0f} s")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Look
# MAGIC
# MAGIC Silver has the source's columns. The few that begin with two underscores are ours.

# COMMAND ----------

state = pipeline.status()
columns = "table STRING, state STRING, rows_in_bronze BIGINT, last_batch BIGINT, in_silver BIGINT"
rows = [(table.table, table.state, table.rows, table.batch, table.applied) for table in state.tables]
display(spark.createDataFrame(rows, columns))

# COMMAND ----------

for name in pipeline.name_views():
    print(name)
    display(spark.table(name).limit(5))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Is silver really what the source is?
# MAGIC
# MAGIC `reconcile` reads the source in one view, brings silver to exactly that position and compares every cell. It reads
# MAGIC each table once.

# COMMAND ----------

reconciled = pipeline.reconcile()
for table in reconciled.tables:
    print(f"{table.table}: {table.source_rows:,} rows, {'equal' if table.same else 'DIFFERENT'}")
assert reconciled.same, "cdc reconcile --repair mends what differs"
