# Databricks notebook source
# MAGIC %md
# MAGIC # Operate: how is the pipeline, and what to do
# MAGIC
# MAGIC State, the last runs, incidents with their remedies, what the next run would do, and signals to it. All of it is
# MAGIC in the control tables too, for dashboards and alerts. Only the cell under *Ask for something* writes, and only if
# MAGIC you fill its widget.
# MAGIC
# MAGIC On a laptop: `python notebooks/run.py notebooks/operate.py pipeline=demo/demo.yml`

# COMMAND ----------

# MAGIC %pip install --quiet "..[postgresql,databricks]"

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

dbutils.widgets.text("pipeline", "../pipelines/shop.yml", "Pipeline file")
dbutils.widgets.text("catalog", "", "Catalog (empty: as the file says)")
dbutils.widgets.text("prefix", "", "Prefix of the schemas, as dev_ann_")
dbutils.widgets.text("secrets", "", "Secret scope (empty: environment)")
dbutils.widgets.text("snapshot", "", "Table to read again, as public.orders")

# COMMAND ----------

import cdc_lib

pipeline = cdc_lib.open_pipeline(
    dbutils.widgets.get("pipeline"),
    catalog=dbutils.widgets.get("catalog"),
    prefix=dbutils.widgets.get("prefix"),
    secrets=dbutils.widgets.get("secrets"),
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## State
# MAGIC
# MAGIC *Lag* is log at the source that is not in bronze yet. *Kept* is log that the source keeps for us; when its limit is
# MAGIC reached, it drops what we have not read, and all tables must be read again.

# COMMAND ----------

state = pipeline.status()
print(f"position   {state.position or 'nothing captured yet'}, batch {state.batch}")
print(f"committed  {state.committed_at}")
print(f"lag        {state.lag_bytes if state.lag_bytes is not None else 'not known'} bytes")
if state.source_error:
    print(f"source     {state.source_error}")
if state.retained_bytes is not None:
    room = "no limit" if state.headroom_bytes is None else f"{state.headroom_bytes:,} bytes left"
    print(f"kept       {state.retained_bytes:,} bytes, {room}")
if state.last_run is not None and state.last_run.error:
    print(f"last run   {state.last_run.error}\n  to do: {state.last_run.remedy}")

# COMMAND ----------

# MAGIC %md
# MAGIC Tables. `bronze_only` means that silver stopped, with the reason. A silver that is behind catches up with the next
# MAGIC run.

# COMMAND ----------

columns = "table STRING, state STRING, last_batch BIGINT, in_silver BIGINT, reason STRING, remedy STRING"
rows = [(t.table, t.state, t.batch, t.applied, t.reason, t.remedy) for t in state.tables]
display(spark.createDataFrame(rows, columns))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The last runs

# COMMAND ----------

display(
    pipeline.sql(f"""
        SELECT verb, started_at, round(metrics['seconds'], 1) AS seconds, outcome, error, remedy
        FROM {{control}}.runs
        WHERE pipeline = '{pipeline.name}'
        ORDER BY started_at DESC LIMIT 20
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Incidents
# MAGIC
# MAGIC What went wrong without stopping a run. The last column says what to do.
# MAGIC
# MAGIC | kind | means |
# MAGIC |---|---|
# MAGIC | gap in the log | the source dropped log that was not read; all tables were read again |
# MAGIC | rows recomputed | DDL gave old rows values that no log carries; the table is read again by itself |
# MAGIC | value not known | the log left a value out and silver had none; it is listed in `__unavailable` |
# MAGIC | table without a key | its rows cannot be told apart: bronze only, until it has a key |
# MAGIC | control tables rebuilt | they were lost; `cdc rebuild` wrote them anew |

# COMMAND ----------

display(
    pipeline.sql(f"""
        SELECT at, kind, table, message, remedy
        FROM {{control}}.incidents
        WHERE pipeline = '{pipeline.name}'
        ORDER BY at DESC LIMIT 50
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What would the next run do, and what would stop it?

# COMMAND ----------

plan = pipeline.plan()
for table in plan.tables:
    print(f"{table.table}: {table.action}")
for signal in plan.signals:
    print(f"signal {signal.id} ({signal.type}): {signal.status}, {signal.text}")
for stop in plan.stops:
    print(f"STOPS: {stop}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Ask for something
# MAGIC
# MAGIC Signals are rows that anybody who may write to the control schema inserts; the next run answers each. To take a
# MAGIC table again, name it in the widget *Table to read again*. In SQL that would be:
# MAGIC
# MAGIC     INSERT INTO <control>.signals (id, type, data)
# MAGIC     VALUES ('orders-1', 'execute-snapshot', '{"data-collections": ["public.orders"]}')

# COMMAND ----------

again = dbutils.widgets.get("snapshot")
if again:
    asked = pipeline.signal("execute-snapshot", {"data-collections": [again]})
    print(f"signal {asked}: the next run answers it")

# COMMAND ----------

display(
    pipeline.sql(f"""
        SELECT s.id, s.type, s.data, a.status, a.text, a.at AS answered_at
        FROM {{control}}.signals s
        LEFT JOIN {{control}}.signal_answers a ON a.id = s.id AND a.pipeline = '{pipeline.name}'
        WHERE coalesce(s.pipeline, '') IN ('', '{pipeline.name}')
        ORDER BY answered_at DESC NULLS FIRST LIMIT 50
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Maintenance
# MAGIC
# MAGIC What `cdc maintain` (a weekly job) would do now.

# COMMAND ----------

maintenance = pipeline.maintain(plan=True)
for table in maintenance.tables:
    if table.files_after is None or table.removed:
        print(f"{table.table}: {table.files} files, {table.removed} of older versions to remove")
    if table.left:
        print(f"{table.table}: {table.left}")
for expired in maintenance.expired:
    print(f"control table {expired.table}: {expired.rows} rows to drop")
