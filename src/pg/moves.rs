//! The rarer transitions of the ledger, each a compare-and-set on its token, with its evidence.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};

use super::error::StoreError;
use super::wave::{Destination, Move, Wave, WaveDone, Writer, millis};
use crate::domain::verdict::Token;

/// Carries out every move of a wave, in the wave's transaction.
pub(super) async fn apply(
    connection: &mut PgConnection,
    writer: &Writer,
    wave: &Wave,
    done: &mut WaveDone,
) -> Result<(), StoreError> {
    if wave.moves.is_empty() {
        return Ok(());
    }
    let mut sorted: Vec<(usize, &Move)> = wave.moves.iter().enumerate().collect();
    sorted.sort_unstable_by(|a, b| a.1.target.key().cmp(b.1.target.key()));
    let of = |wanted: fn(&Destination) -> bool| -> Vec<(usize, &Move)> {
        sorted.iter().filter(|(_, m)| wanted(&m.to)).copied().collect()
    };
    let waiting = of(|to| matches!(to, Destination::Waiting { .. }));
    let uncertain = of(|to| matches!(to, Destination::Uncertain));
    let gone = of(|to| matches!(to, Destination::Gone));
    let late = of(|to| matches!(to, Destination::LateAnswer { .. }));
    report(&waiting, &to_waiting(connection, &waiting).await?, done);
    report(&uncertain, &to_uncertain(connection, writer, &uncertain).await?, done);
    report(&gone, &remove(connection, &gone).await?, done);
    late_done(connection, &late).await?;
    keep_evidence(connection, writer, &sorted).await
}

fn report(moves: &[(usize, &Move)], matched: &HashSet<String>, done: &mut WaveDone) {
    let missed = moves.iter().filter(|(_, m)| !matched.contains(m.target.key()));
    done.not_moved.extend(missed.map(|(index, _)| *index));
}

fn keys<'a>(moves: &[(usize, &'a Move)]) -> Vec<&'a str> {
    moves.iter().map(|(_, m)| m.target.key()).collect()
}

fn tokens(moves: &[(usize, &Move)]) -> Vec<Option<Token>> {
    moves.iter().map(|(_, m)| m.token).collect()
}

fn matched(rows: &[sqlx::postgres::PgRow]) -> Result<HashSet<String>, StoreError> {
    rows.iter().map(|row| row.try_get(0).map_err(StoreError::from)).collect()
}

async fn to_waiting(
    connection: &mut PgConnection,
    moves: &[(usize, &Move)],
) -> Result<HashSet<String>, StoreError> {
    if moves.is_empty() {
        return Ok(HashSet::new());
    }
    let terms: Vec<(i64, bool, i32)> = moves
        .iter()
        .map(|(_, m)| match m.to {
            Destination::Waiting { due_in, maybe_sent, counted } => {
                (millis(due_in), maybe_sent, i32::from(!counted))
            }
            _ => (0, false, 0),
        })
        .collect();
    // The second arm of the condition recognises this very move, whose answer was lost.
    let rows = sqlx::query(
        "with m as (
             update efeito_aplicado e
             set ficha = null, dono = null, reserva_ate = null, tentar_em = now() + x.espera * interval '1 millisecond',
                 talvez_enviado = e.talvez_enviado or x.talvez, tentativas = greatest(0, e.tentativas - x.devolve), atualizado_em = now()
             from unnest($1::text[], $2::uuid[], $3::bigint[], $4::boolean[], $5::integer[]) as x(chave, ficha, espera, talvez, devolve)
             where e.chave = x.chave and e.estado = 'reservado' and e.ficha = x.ficha
             returning e.chave, e.tipo_efeito, e.tentar_em
         ), p as (
             insert into efeito_pendente (chave, tipo_efeito, situacao, tentar_em)
             select chave, tipo_efeito, 'espera', tentar_em from m
             on conflict (chave) do update set situacao = 'espera', tentar_em = excluded.tentar_em
         )
         select chave from m
         union
         select e.chave from unnest($1::text[]) as x(chave) join efeito_aplicado e on e.chave = x.chave
         where e.estado = 'reservado' and e.ficha is null",
    )
    .bind(keys(moves))
    .bind(tokens(moves))
    .bind(terms.iter().map(|t| t.0).collect::<Vec<_>>())
    .bind(terms.iter().map(|t| t.1).collect::<Vec<_>>())
    .bind(terms.iter().map(|t| t.2).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    matched(&rows)
}

async fn to_uncertain(
    connection: &mut PgConnection,
    writer: &Writer,
    moves: &[(usize, &Move)],
) -> Result<HashSet<String>, StoreError> {
    if moves.is_empty() {
        return Ok(HashSet::new());
    }
    // Another's reservation is judged by its lease or by its owner's lock, in the very statement that moves it.
    let rows = sqlx::query(
        "with m as (
             update efeito_aplicado e
             set estado = 'incerto', talvez_enviado = true, reserva_ate = null, tentar_em = null, atualizado_em = now()
             from unnest($1::text[], $2::uuid[]) as x(chave, ficha)
             where e.chave = x.chave and e.estado = 'reservado' and e.ficha is not distinct from x.ficha
               and (e.ficha is null or e.dono = $3 or e.reserva_ate <= now() or pg_try_advisory_xact_lock(e.dono))
             returning e.chave, e.tipo_efeito
         ), p as (
             insert into efeito_pendente (chave, tipo_efeito, situacao)
             select chave, tipo_efeito, 'incerto' from m
             on conflict (chave) do update set situacao = 'incerto', tentar_em = null, desde = now()
         )
         select chave from m
         union
         select e.chave from unnest($1::text[]) as x(chave) join efeito_aplicado e on e.chave = x.chave where e.estado = 'incerto'",
    )
    .bind(keys(moves))
    .bind(tokens(moves))
    .bind(writer.owner)
    .fetch_all(connection)
    .await?;
    matched(&rows)
}

/// Gives a reservation back of which nothing was ever sent. A row that is gone already was removed by this very
/// move, whose answer was lost.
async fn remove(
    connection: &mut PgConnection,
    moves: &[(usize, &Move)],
) -> Result<HashSet<String>, StoreError> {
    if moves.is_empty() {
        return Ok(HashSet::new());
    }
    let rows = sqlx::query(
        "with m as (
             delete from efeito_aplicado e using unnest($1::text[], $2::uuid[]) as x(chave, ficha)
             where e.chave = x.chave and e.ficha is not distinct from x.ficha and e.estado = 'reservado' and not e.talvez_enviado
             returning e.chave
         )
         select chave from m
         union
         select x.chave from unnest($1::text[]) as x(chave) where not exists (select 1 from efeito_aplicado e where e.chave = x.chave)",
    )
    .bind(keys(moves))
    .bind(tokens(moves))
    .fetch_all(connection)
    .await?;
    matched(&rows)
}

/// A late 'done' is proof: it turns `incerto` into `concluido`. It never overrules a person: once something was
/// decided about the effect, only the attempt made since then (whose token the row bears) can prove anything.
async fn late_done(connection: &mut PgConnection, moves: &[(usize, &Move)]) -> Result<(), StoreError> {
    let proofs: Vec<(&str, Option<Token>, &str)> = moves
        .iter()
        .filter(|(_, m)| matches!(m.to, Destination::LateAnswer { done: true }))
        .map(|(_, m)| (m.target.key(), m.token, m.result.as_deref().unwrap_or("null")))
        .collect();
    if proofs.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "with m as (
             update efeito_aplicado e set estado = 'concluido', resultado = x.resultado::jsonb, atualizado_em = now()
             from unnest($1::text[], $2::uuid[], $3::text[]) as x(chave, ficha, resultado)
             where e.chave = x.chave and e.estado = 'incerto'
               and (e.ficha = x.ficha or not exists (select 1 from revisao_efeito r where r.chave = e.chave))
             returning e.chave
         )
         delete from efeito_pendente p using m where p.chave = m.chave",
    )
    .bind(proofs.iter().map(|(key, ..)| *key).collect::<Vec<_>>())
    .bind(proofs.iter().map(|(_, token, _)| *token).collect::<Vec<_>>())
    .bind(proofs.iter().map(|(.., result)| *result).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

async fn keep_evidence(
    connection: &mut PgConnection,
    writer: &Writer,
    moves: &[(usize, &Move)],
) -> Result<(), StoreError> {
    let lines: Vec<_> =
        moves.iter().filter_map(|(_, m)| m.evidence.as_ref().map(|evidence| (*m, evidence))).collect();
    if lines.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "insert into tentativa_efeito (chave, ficha, execucao_id, instancia, dono, resposta, alcance, status, detalhe, requisicao, duracao_ms)
         select x.chave, x.ficha, $1, $2, $3, x.resposta, x.alcance, x.status, x.detalhe, x.requisicao::jsonb, x.duracao
         from unnest($4::text[], $5::uuid[], $6::text[], $7::text[], $8::integer[], $9::text[], $10::text[], $11::bigint[])
              as x(chave, ficha, resposta, alcance, status, detalhe, requisicao, duracao)",
    )
    .bind(&writer.run.id)
    .bind(&*writer.instance)
    .bind(writer.owner)
    .bind(lines.iter().map(|(m, _)| m.target.key()).collect::<Vec<_>>())
    .bind(lines.iter().map(|(m, _)| m.token).collect::<Vec<_>>())
    .bind(lines.iter().map(|(_, e)| e.answer).collect::<Vec<_>>())
    .bind(lines.iter().map(|(_, e)| e.reached).collect::<Vec<_>>())
    .bind(lines.iter().map(|(_, e)| e.status.map(i32::from)).collect::<Vec<_>>())
    .bind(lines.iter().map(|(_, e)| e.detail.as_str()).collect::<Vec<_>>())
    .bind(lines.iter().map(|(m, _)| m.target.request().body.as_str()).collect::<Vec<_>>())
    .bind(lines.iter().map(|(_, e)| e.elapsed.map(millis)).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}
