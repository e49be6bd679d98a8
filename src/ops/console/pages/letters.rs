//! Dead letters: found by filter, looked at byte by byte, handled again after a rehearsal.

use std::fmt::Write as _;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use super::{Answer, OrPage, SHOWN, choice};
use crate::domain::poison::Reason;
use crate::ops::console::Console;
use crate::ops::console::desk::invalid;
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, facts, grouped, link, number, page, table, text};
use crate::ops::console::session::Signed;
use crate::ops::problem::Problem;
use crate::pg::letters::{Selection, StoredLetter};

const HERE: &str = "/console/dead-letters";
/// Bytes of a value that are shown in hex.
const HEX_MAX: usize = 4096;
const HEX_ROW: usize = 16;

/// What a filter selects.
fn selection(view: &View, fields: &Fields) -> Result<Selection, Problem> {
    let instant = |name: &str| -> Result<Option<Timestamp>, Problem> {
        let Some(given) = fields.get(name) else { return Ok(None) };
        view.instant(given).map(Some).ok_or_else(|| invalid(format!("{name}: {given:?} is no instant")))
    };
    let mut ids = Vec::new();
    for id in fields.all("id") {
        ids.push(id.parse().map_err(|_| invalid(format!("id: {id:?} is no number")))?);
    }
    if let Some(reason) = fields.get("motivo")
        && Reason::from_code(reason).is_none()
    {
        return Err(invalid(format!("motivo: {reason:?} is no reason code")));
    }
    Ok(Selection {
        ids: (!ids.is_empty()).then_some(ids),
        reason: fields.get("motivo").map(str::to_owned),
        order: fields.get("pedido").map(str::to_owned),
        from: instant("de")?,
        to: instant("ate")?,
        open_only: fields.get("situacao") == Some("aberta"),
    })
}

pub async fn list(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let wanted = selection(&view, &fields).or_page(&view)?;
    let limit = i64::try_from(SHOWN).unwrap_or(i64::MAX);
    let (found, count) = console.letters(&wanted, limit).await.or_page(&view)?;
    let open = found.iter().any(|letter| letter.situation == "aberta");
    let body = html! {
        p class="quiet" { (view.say("letters.what")) }
        form method="get" class="filter" {
            (choice(&view, "motivo", &view.say("col.reason"), &Reason::ALL.map(Reason::code), &fields))
            (choice(&view, "situacao", &view.say("col.state"), &["aberta"], &fields))
            label { (view.say("col.order")) input name="pedido" value=(fields.get("pedido").unwrap_or_default()); }
            label { (view.say("filter.from")) input type="datetime-local" step="1" name="de" value=(fields.get("de").unwrap_or_default()); }
            label { (view.say("filter.to")) input type="datetime-local" step="1" name="ate" value=(fields.get("ate").unwrap_or_default()); }
            button { (view.say("filter.apply")) }
        }
        p { (view.fill("letters.count", &[("n", &grouped(count)), ("shown", &found.len().to_string())])) }
        form method="post" action="/console/dead-letters/redrive" data-count="" {
            (view.csrf())
            @for (name, value) in fields.pairs() { @if name != "situacao" { input type="hidden" name=(format!("filtro-{name}")) value=(value); } }
            (listing(&view, &found))
            @if open {
                p class="actions" {
                    label class="inline" { input type="checkbox" data-all="id"; (view.say("list.all")) }
                    button name="o-que" value="escolhidas" { (view.say("letters.rehearse-chosen")) " " span data-chosen="" {} }
                    button name="o-que" value="filtro" { (view.say("letters.rehearse-all")) }
                }
                p class="quiet" { (view.say("letters.rehearse-what")) }
            }
        }
    };
    Ok(page(&view, &view.say("letters.title"), HERE, &body).into_response())
}

fn listing(view: &View, found: &[StoredLetter]) -> Markup {
    let heads = [
        view.say("col.choose"),
        "id".to_owned(),
        view.say("col.reason"),
        view.say("col.message"),
        view.say("col.order"),
        view.say("col.effect"),
        view.say("col.place"),
        view.say("col.rounds"),
        view.say("col.state"),
        view.say("col.since"),
    ];
    let rows = found.iter().map(|letter| {
        let id = letter.id.to_string();
        let words = view.fill("list.choose", &[("what", &id)]);
        let choose = html! { @if letter.situation == "aberta" { input type="checkbox" name="id" value=(id) aria-label=(words); } };
        vec![
            cell(choose),
            cell(html! { a href=(link(HERE, &id)) { (id) } }),
            cell(html! { a href=(format!("{HERE}?motivo={}", letter.reason)) { code { (letter.reason) } } }),
            text(&letter.message),
            text(letter.order_id.as_deref().unwrap_or("–")),
            text(letter.effect_type.as_deref().unwrap_or("–")),
            number(html! { (letter.raw.partition) " / " (letter.raw.offset) }),
            number(html! { (letter.rounds) }),
            cell(badge(&letter.situation)),
            cell(view.when(&letter.created_at)),
        ]
    });
    table(&heads, rows.collect(), &view.say("letters.none"))
}

pub async fn show(State(console): State<Console>, view: View, Path(id): Path<i64>, fields: Fields) -> Answer {
    let letter = console.letter(id).await.or_page(&view)?;
    let at = letter.raw.timestamp_ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let known = [
        (view.say("col.state"), badge(&letter.situation)),
        (view.say("col.reason"), html! { code { (letter.reason) } }),
        (view.say("col.message"), html! { (letter.message) }),
        (view.say("col.order"), html! { (letter.order_id.as_deref().unwrap_or("–")) }),
        (view.say("col.effect"), html! { (letter.effect_type.as_deref().unwrap_or("–")) }),
        (
            view.say("col.place"),
            html! { (letter.raw.topic) " · " (letter.raw.partition) " / " (letter.raw.offset) },
        ),
        (
            view.say("letter.log-time"),
            html! { @match at { Some(at) => { (view.when(&at.to_string())) } None => { "–" } } },
        ),
        (view.say("col.run"), html! { (letter.run_id) }),
        (view.say("col.attempts"), html! { (letter.attempts) }),
        (view.say("col.rounds"), html! { (letter.rounds) }),
        (view.say("letter.first-failed"), view.when(&letter.first_failed_at)),
        (view.say("letter.size"), html! { (grouped(letter.size)) " · sha256 " code { (letter.sha256) } }),
    ];
    let body = html! {
        @if letter.is_cut() { p class="box warn" { (view.say("letter.cut")) } }
        (facts(&known))
        h2 { (view.say("letter.value")) }
        (value(&view, &letter, &fields))
        h2 { (view.say("letter.key")) }
        (bytes(&view, letter.raw.key.as_deref(), "texto"))
        h2 { (view.say("letter.headers")) }
        (headers(&view, &letter))
        @if letter.situation == "aberta" {
            form method="post" action="/console/dead-letters/redrive" {
                (view.csrf())
                input type="hidden" name="id" value=(letter.id);
                button { (view.say("letters.rehearse-this")) }
            }
        }
    };
    Ok(page(&view, &view.fill("letter.title", &[("id", &id.to_string())]), HERE, &body).into_response())
}

fn value(view: &View, letter: &StoredLetter, fields: &Fields) -> Markup {
    let looks = ["json", "texto", "hex"];
    let json =
        letter.raw.value.as_deref().is_some_and(|value| serde_json::from_slice::<Value>(value).is_ok());
    let text = letter.raw.value.as_deref().is_none_or(|value| std::str::from_utf8(value).is_ok());
    let usual = if json {
        "json"
    } else if text {
        "texto"
    } else {
        "hex"
    };
    let look = fields.get("como").filter(|look| looks.contains(look)).unwrap_or(usual);
    html! {
        p class="tabs" { @for each in looks { a href=(format!("?como={each}")) aria-current=[(each == look).then_some("true")] { (each) } } }
        (bytes(view, letter.raw.value.as_deref(), look))
    }
}

/// Bytes as text, hex or JSON; never guessed to be something that they are not.
fn bytes(view: &View, bytes: Option<&[u8]>, look: &str) -> Markup {
    let Some(bytes) = bytes else { return html! { p class="empty" { "null" } } };
    match look {
        "json" => match serde_json::from_slice::<Value>(bytes) {
            Ok(json) => html! { pre { (serde_json::to_string_pretty(&json).unwrap_or_default()) } },
            Err(error) => {
                html! { p class="box warn" { (view.say("letter.no-json")) " " (error.to_string()) } }
            }
        },
        "hex" => html! {
            pre { (hex(bytes.get(..HEX_MAX).unwrap_or(bytes))) }
            @if bytes.len() > HEX_MAX { p class="quiet" { (view.fill("letter.hex-cut", &[("n", &HEX_MAX.to_string())])) } }
        },
        _ => html! { pre { (String::from_utf8_lossy(bytes)) } },
    }
}

/// Offset, sixteen bytes, and what of them can be read.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (row, chunk) in bytes.chunks(HEX_ROW).enumerate() {
        let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let readable: String = chunk
            .iter()
            .map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' })
            .collect();
        // Writing to a string cannot fail.
        writeln!(out, "{:08x}  {:<47}  {readable}", row * HEX_ROW, digits.join(" ")).unwrap_or_default();
    }
    out
}

fn headers(view: &View, letter: &StoredLetter) -> Markup {
    let heads = [view.say("col.name"), view.say("col.value")];
    let rows = letter.raw.headers.iter().map(|(name, value)| {
        let value = value.as_deref().map(crate::run::told::readable);
        vec![cell(html! { code { (name) } }), text(value.as_deref().unwrap_or("null"))]
    });
    table(&heads, rows.collect(), &view.say("none"))
}

/// First the rehearsal, with what it would do and to how many; then, confirmed, the redrive.
pub async fn redrive(State(console): State<Console>, view: View, Signed(fields): Signed) -> Answer {
    let mut kept = fields.clone();
    if fields.get("o-que") == Some("filtro") {
        kept = Fields::default();
    }
    let mut pairs: Vec<(String, String)> =
        kept.all("id").map(|id| ("id".to_owned(), id.to_owned())).collect();
    if pairs.is_empty() {
        if fields.get("o-que") == Some("escolhidas") {
            return Err(invalid(view.say("letters.choose-some"))).or_page(&view);
        }
        let filters = fields.pairs().filter_map(|(name, value)| Some((name.strip_prefix("filtro-")?, value)));
        pairs.extend(filters.filter(|(_, v)| !v.is_empty()).map(|(n, v)| (n.to_owned(), v.to_owned())));
    }
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
    let mut wanted = selection(&view, &Fields::parse(query.as_bytes())).or_page(&view)?;
    wanted.open_only = true;
    let confirmed = fields.get("confirmado").is_some();
    let came = console.redrive(&wanted, !confirmed).await.or_page(&view)?;
    Ok(if confirmed { done(&view, &came) } else { rehearsed(&view, &came, &pairs) })
}

fn counts(view: &View, came: &Value) -> Markup {
    let count = |name: &str| grouped(came[name].as_i64().unwrap_or(0));
    facts(&[
        (view.say("redrive.selected"), html! { (count("selecionadas")) }),
        (view.say("redrive.applied"), html! { (count("aplicadas")) }),
        (view.say("redrive.returned"), html! { (count("devolvidas")) }),
    ])
}

fn rehearsed(view: &View, came: &Value, pairs: &[(String, String)]) -> Response {
    let n = came["selecionadas"].as_i64().unwrap_or(0);
    let body = html! {
        p { (view.say("redrive.rehearsed")) }
        (counts(view, came))
        @if n > 0 {
            form method="post" action="/console/dead-letters/redrive" {
                (view.csrf())
                input type="hidden" name="confirmado" value="sim";
                @for (name, value) in pairs {
                    @let name = if name == "id" { name.clone() } else { format!("filtro-{name}") };
                    input type="hidden" name=(name) value=(value);
                }
                p { (view.fill("redrive.will", &[("n", &n.to_string())])) }
                button class="danger" { (view.fill("redrive.button", &[("n", &n.to_string())])) }
            }
        }
    };
    page(view, &view.say("redrive.title"), HERE, &body).into_response()
}

fn done(view: &View, came: &Value) -> Response {
    let body = html! {
        p class="box good" role="status" { (view.say("redrive.done")) }
        (counts(view, came))
        p { a href="/console/dead-letters?situacao=aberta" { (view.say("redrive.rest")) } }
    };
    page(view, &view.say("redrive.title"), HERE, &body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_has_offset_bytes_and_what_can_be_read() {
        assert_eq!(
            hex(b"\x00\x01abc {\"x\":1}\xffz."),
            "00000000  00 01 61 62 63 20 7b 22 78 22 3a 31 7d ff 7a 2e  ..abc {\"x\":1}.z.\n"
        );
        assert_eq!(hex(b"a"), format!("00000000  61{}  a\n", " ".repeat(45)));
    }
}
