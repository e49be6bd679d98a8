//! What the demo asks and writes: a database of its own, the rows that 'the old code' would have left, the proof.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, Row};
use std::str::FromStr as _;

use super::error::StoreError;

/// Databases of demos are named so, followed by the demo's number.
const PREFIX: &str = "reprise_demo_";
/// Numbers above are somebody else's names.
const NUMBER_MAX: u32 = 999_999;
/// First key of the advisory locks by which running demos are told from the remains of ended ones.
const LOCKS: i32 = 0x0DE0;

/// A demo's number, its own for as long as this lives, and the numbers whose demos have ended.
///
/// The server takes the lock back when the process is gone, however it went.
pub struct Claim {
    connection: PgConnection,
    pub number: u32,
    /// Demos that ended and left their database; nobody else clears them away while this lives.
    pub leftovers: Vec<u32>,
}

impl Claim {
    /// Takes the first free number above `taken` and above every database of a demo on the server of `url`.
    pub async fn take(url: &str, taken: u32) -> Result<Self, StoreError> {
        let server = PgConnectOptions::from_str(url)?.database("postgres");
        let mut connection: PgConnection = server.connect().await?;
        let names: Vec<String> = sqlx::query_scalar("select datname::text from pg_database order by 1")
            .fetch_all(&mut connection)
            .await?;
        let numbers: Vec<u32> = names.iter().filter_map(|name| number_of(name, PREFIX)).collect();
        let mut leftovers = Vec::new();
        for number in &numbers {
            if lock(&mut connection, *number).await? {
                leftovers.push(*number);
            }
        }
        let mut number = numbers.iter().copied().chain([taken]).max().unwrap_or(0).saturating_add(1);
        while !lock(&mut connection, number).await? {
            number = number.saturating_add(1);
        }
        Ok(Self { connection, number, leftovers })
    }

    /// Makes this demo's database, and says its name.
    pub async fn create_database(&mut self) -> Result<String, StoreError> {
        let name = format!("{PREFIX}{}", self.number);
        // A prefix and a number; identifiers cannot be bound.
        let create = format!(r#"create database "{name}""#);
        sqlx::query(AssertSqlSafe(create)).execute(&mut self.connection).await?;
        Ok(name)
    }

    /// Removes the database of an ended demo.
    pub async fn drop_leftover(&mut self, number: u32) -> Result<(), StoreError> {
        // With force: somebody may still be looking around in it.
        let drop = format!(r#"drop database if exists "{PREFIX}{number}" with (force)"#);
        sqlx::query(AssertSqlSafe(drop)).execute(&mut self.connection).await?;
        Ok(())
    }
}

/// Makes the database anew on the server that `url` names, and returns its own URL.
pub async fn fresh_database(url: &str, name: &str) -> Result<String, StoreError> {
    let server = PgConnectOptions::from_str(url)?.database("postgres");
    let mut connection: PgConnection = server.connect().await?;
    // The name is a constant of the caller; identifiers cannot be bound.
    let drop = format!(r#"drop database if exists "{name}" with (force)"#);
    sqlx::query(AssertSqlSafe(drop)).execute(&mut connection).await?;
    let create = format!(r#"create database "{name}""#);
    sqlx::query(AssertSqlSafe(create)).execute(&mut connection).await?;
    beside(url, name).map_err(|error| sqlx::Error::Configuration(error.into()).into())
}

/// The same server and the same way to it, another database.
pub fn beside(url: &str, database: &str) -> Result<String, url::ParseError> {
    let mut url = url::Url::parse(url)?;
    url.set_path(database);
    Ok(url.into())
}

/// The number in a name that is `prefix` and a number written as this program writes it.
pub fn number_of(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let number: u32 = digits.parse().ok()?;
    (number <= NUMBER_MAX && number.to_string() == digits).then_some(number)
}

async fn lock(connection: &mut PgConnection, number: u32) -> Result<bool, StoreError> {
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    let locked = sqlx::query_scalar("select pg_try_advisory_lock($1, $2)").bind(LOCKS).bind(number);
    Ok(locked.fetch_one(connection).await?)
}

/// Rewrites rows of effects that occurred from `from` on as the program with the bug would have left them: the
/// commission and the amount told a tenth of what is right, and `missing` notices not there at all.
pub async fn spoil(pool: &PgPool, from: &str, missing: i64) -> Result<Spoilt, StoreError> {
    let commissions = sqlx::query(
        "update comissao c set valor_centavos = c.valor_centavos / 10, atualizado_em = now()
         where exists (select 1 from efeito_aplicado e where e.evento_id = c.evento_id
                       and (e.requisicao ->> 'ocorridoEm')::timestamptz >= $1::timestamptz)",
    )
    .bind(from)
    .execute(pool)
    .await?
    .rows_affected();
    let notices = sqlx::query(
        "update efeito_aplicado e
         set requisicao = jsonb_set(e.requisicao, '{valorCentavos}', to_jsonb((e.requisicao ->> 'valorCentavos')::bigint / 10)),
             resumo_requisicao = sha256(convert_to((e.requisicao ->> 'chave') || ' a tenth', 'UTF8'))
         where e.estado = 'concluido' and (e.requisicao ->> 'ocorridoEm')::timestamptz >= $1::timestamptz",
    )
    .bind(from)
    .execute(pool)
    .await?
    .rows_affected();
    let removed = sqlx::query(
        "delete from efeito_aplicado where chave in (
             select chave from efeito_aplicado
             where estado = 'concluido' and (requisicao ->> 'ocorridoEm')::timestamptz >= $1::timestamptz
             order by chave limit $2) returning chave",
    )
    .bind(from)
    .bind(missing)
    .fetch_all(pool)
    .await?;
    let missing = removed.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
    Ok(Spoilt { commissions, notices: notices - missing.len() as u64, missing })
}

/// What the old code left behind.
#[derive(Debug)]
pub struct Spoilt {
    /// Commissions a tenth too small.
    pub commissions: u64,
    /// Notices sent with the wrong amount.
    pub notices: u64,
    /// Keys of notices that were never sent.
    pub missing: Vec<String>,
}

/// `pedido_id`, `valor_centavos` of every commission.
pub async fn commissions(pool: &PgPool) -> Result<Vec<(String, i64)>, StoreError> {
    let rows =
        sqlx::query("select pedido_id, valor_centavos from comissao order by 1").fetch_all(pool).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Counts of a two-column grouping, for tables.
pub async fn counts(pool: &PgPool, of: Counting) -> Result<Vec<(String, i64)>, StoreError> {
    let sql = match of {
        Counting::Effects => "select estado, count(*) from efeito_aplicado group by 1 order by 2 desc",
        Counting::DeadLetters => "select motivo, count(*) from carta_morta group by 1 order by 2 desc, 1",
    };
    let rows = sqlx::query(sql).fetch_all(pool).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Orders that windows of a minute have counted.
pub async fn orders_in_windows(pool: &PgPool) -> Result<i64, StoreError> {
    let sum = sqlx::query_scalar("select coalesce(sum(orders), 0)::bigint from kpi_orders_per_minute");
    Ok(sum.fetch_one(pool).await?)
}

/// Couriers that are free.
pub async fn hire(pool: &PgPool, tenant: &str, couriers: &[&str]) -> Result<(), StoreError> {
    sqlx::query(
        "insert into courier (id, tenant_id, vehicle_type) select id, $1, 'bike' from unnest($2::text[]) as id
         on conflict do nothing",
    )
    .bind(tenant)
    .bind(couriers)
    .execute(pool)
    .await?;
    Ok(())
}

/// The commission of one order, in cents; `None` while there is none.
pub async fn commission_of(pool: &PgPool, order_id: &str) -> Result<Option<i64>, StoreError> {
    Ok(sqlx::query_scalar("select valor_centavos from comissao where pedido_id = $1")
        .bind(order_id)
        .fetch_optional(pool)
        .await?)
}

/// The key of an uncertain effect, if there is one.
pub async fn uncertain(pool: &PgPool) -> Result<Option<String>, StoreError> {
    let key = "select chave from efeito_aplicado where estado = 'incerto' order by chave limit 1";
    Ok(sqlx::query_scalar(key).fetch_optional(pool).await?)
}

/// What [`counts`] counts.
#[derive(Debug, Clone, Copy)]
pub enum Counting {
    Effects,
    DeadLetters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_beside_another_whatever_the_url_says_besides() {
        let of = |url: &str| beside(url, "reprise_demo_3").expect("a URL");
        assert_eq!(of("postgres://a:b@db:1/shop"), "postgres://a:b@db:1/reprise_demo_3");
        assert_eq!(of("postgres://a@db:1"), "postgres://a@db:1/reprise_demo_3");
        assert_eq!(
            of("postgres://a@db/shop?sslmode=disable&host=/run/pg"),
            "postgres://a@db/reprise_demo_3?sslmode=disable&host=/run/pg"
        );
        assert!(beside("no url", "reprise_demo_3").is_err());
    }

    #[test]
    fn only_names_of_the_demo_have_a_number() {
        assert_eq!(number_of("reprise_demo_12", PREFIX), Some(12));
        for other in
            ["reprise_demo_", "reprise_demo_07", "reprise_demo_1b", "reprise_demo_+1", "reprise_demo_1000000"]
        {
            assert_eq!(number_of(other, PREFIX), None, "{other}");
        }
        assert_eq!(number_of("reprise", PREFIX), None);
    }
}
