package cdc.test;

import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.delta.catalog.DeltaTableV2;

/**
 * Delta's catalog, whose tables say that they support MERGE. They do, by a rule of Delta's own, but open-source
 * AUTO CDC asks for this interface. Databricks does not need it.
 */
public class MergingDeltaCatalog extends DeltaCatalog {
  @Override
  public Table loadTable(Identifier identifier) {
    Table table = super.loadTable(identifier);
    if (table instanceof DeltaTableV2 && !(table instanceof Merging)) {
      return new Merging((DeltaTableV2) table);
    }
    return table;
  }

  static final class Merging extends DeltaTableV2 implements SupportsRowLevelOperations {
    Merging(DeltaTableV2 table) {
      super(table.spark(), table.path(), table.catalogTable(), table.tableIdentifier(),
          table.timeTravelOpt(), table.options());
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
      throw new UnsupportedOperationException("Delta plans MERGE by itself");
    }
  }
}
