# Databricks notebook source
# MAGIC %md
# MAGIC # Explore silver
# MAGIC
# MAGIC For analysts, over the tables of the demo's shop: the rows as they are now, how they came to be so, what changed
# MAGIC today, and the two things that a plain copy would hide: values that their column cannot hold, and values that
# MAGIC nobody knows.
# MAGIC
# MAGIC On a laptop: `make demo`, then `python notebooks/run.py notebooks/explore_silver.py pipeline=demo/demo.yml`

# COMMAND ----------

# MAGIC %pip install --quiet "..[postgresql,databricks]"

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

dbutils.widgets.text("pipeline", "../pipelines/shop.yml", "Pipeline file")
dbutils.widgets.text("catalog", "", "Catalog (empty: as the file says)")
dbutils.widgets.text("prefix", "", "Prefix of the schemas, as dev_ann_")

# COMMAND ----------

# MAGIC %md
# MAGIC The next cell gives silver's tables short names for this session, so that the queries below are the same
# MAGIC everywhere. On Databricks you would write `main.shop.public_orders`. You need to read silver; for *what changed
# MAGIC today* bronze and control, too.

# COMMAND ----------

import cdc_lib

pipeline = cdc_lib.open_pipeline(
    dbutils.widgets.get("pipeline"),
    catalog=dbutils.widgets.get("catalog"),
    prefix=dbutils.widgets.get("prefix"),
)
tables = pipeline.name_views()
print("\n".join(tables))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The rows as they are now
# MAGIC
# MAGIC A table has the source's columns, in its order and plain types. Where the pipeline file asks for every version of
# MAGIC a row (`scd: 2`), the view `<table>_current` has the rows as they are now.

# COMMAND ----------

history = "public_orders_current" in tables
spark.table("public_orders_current" if history else "public_orders").createOrReplaceTempView("orders")

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT status, count(*) AS orders, sum(total) AS total
# MAGIC FROM orders
# MAGIC GROUP BY status
# MAGIC ORDER BY status

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT o.id, c.name, o.status, o.total, o.__committed_at
# MAGIC FROM orders o
# MAGIC JOIN public_customers c ON c.id = o.customer_id
# MAGIC ORDER BY o.__committed_at DESC, o.id DESC
# MAGIC LIMIT 10

# COMMAND ----------

# MAGIC %md
# MAGIC ## How they came to be so
# MAGIC
# MAGIC With `scd: 2` each version of a row says from when to when it held. `__START_AT` and `__END_AT` are places in the one
# MAGIC order of all changes, so *as of* a place gives all tables at one moment.

# COMMAND ----------

if history:
    display(
        spark.sql("""
            SELECT id, status, total, __committed_at AS since, __ended_at AS until
            FROM public_orders
            WHERE id IN (SELECT id FROM public_orders GROUP BY id ORDER BY count(*) DESC, id LIMIT 3)
            ORDER BY id, __START_AT
        """)
    )
else:
    print("public.orders keeps the newest version only; bronze, below, has all changes either way.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What changed today
# MAGIC
# MAGIC Bronze has every change, with when the source committed it. Readers use rows up to the committed batch: above it, a
# MAGIC run may be at work. `r` are rows that a snapshot read, `c u d t` creates, updates, deletes and truncates.

# COMMAND ----------

COMMITTED = f"""
    _batch <= (SELECT max(batch) FROM {{control}}.watermarks
               WHERE pipeline = '{pipeline.name}' AND kind <> 'applied')
"""
TODAY = "timestamp_millis(source.ts_ms) >= current_date()"

display(
    pipeline.sql(f"""
        SELECT op, count(*) AS changes, max(timestamp_millis(source.ts_ms)) AS newest
        FROM {{bronze}}.public_orders
        WHERE {TODAY} AND op <> 'r' AND {COMMITTED}
        GROUP BY op ORDER BY op
    """)
)

# COMMAND ----------

display(
    pipeline.sql(f"""
        SELECT timestamp_millis(source.ts_ms) AS at, op, coalesce(after.id, before.id) AS id, after.status, after.total
        FROM {{bronze}}.public_orders
        WHERE {TODAY} AND op <> 'r' AND {COMMITTED}
        ORDER BY _sequence DESC LIMIT 20
    """)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Values that a column cannot hold, values that nobody knows
# MAGIC
# MAGIC Both are NULL in their column, and neither is NULL at the source. `__special` has the source's own text of a value
# MAGIC that the column's type cannot hold (`infinity`, `NaN` in a decimal, a year before Christ). `__unavailable` lists
# MAGIC columns whose value no change carried and silver did not have: not known, until the table is read again. A table has
# MAGIC these columns from the first such value on.

# COMMAND ----------

from pyspark.sql import functions as F

for name in tables:
    frame = spark.table(name)
    for column in sorted({"__special", "__unavailable"} & set(frame.columns)):
        print(f"{name}: {column}")
        display(frame.where(F.size(column) > 0).limit(20))
