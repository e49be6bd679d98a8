//! Where the process meets others: its own listener, its providers, and what it no longer keeps.

use super::*;

fn warnings(text: &str) -> Vec<String> {
    let (_, warnings) = Config::from_text(text, env(&[])).expect("a configuration");
    warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_token_that_travels_in_clear_is_warned_of_unless_a_proxy_stands_before() {
    let token = Scratch::new("tok3n");
    let open = format!("endereco = \"0.0.0.0:9464\"\ntoken_arquivo = \"{}\"", token.path());
    let said = warnings(&with("http", &open));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("http.endereco") && said[0].contains("http.atras_de_proxy = true"), "{said:?}");
    assert_eq!(warnings(&with("http", &format!("{open}\natras_de_proxy = true"))), Vec::<String>::new());
    let local = format!("token_arquivo = \"{}\"", token.path());
    assert_eq!(warnings(&with("http", &local)), Vec::<String>::new());
    let wrong = problem(&with("http", "atras_de_proxy = \"yes\""), &[]);
    assert!(wrong.contains("http.atras_de_proxy") && wrong.contains("neither true nor false"), "{wrong}");
    assert!(load(LEAST, &[("REPRISE_HTTP__ATRAS_DE_PROXY", "true")]).http.behind_proxy);
}

#[test]
fn a_provider_outside_the_allowed_hosts_is_refused() {
    let allowed = |hosts: &str| with("http_saida", &format!("permitidos = {hosts}"));
    assert_eq!(load(&allowed("[\"127.0.0.1:9000\", \"*.example\"]"), &[]).effects.len(), 1);
    let refused = problem(&allowed("[\"other.example\"]"), &[]);
    assert!(refused.contains("efeitos.notificar-vendedor.url: 127.0.0.1 is not among"), "{refused}");
    assert!(problem(&allowed("[]"), &[]).contains("is not among http_saida.permitidos"));
    assert!(problems(&allowed("[\"http://x\"]"), &[])[0].contains("\"http://x\" is not a host"));
    let by_env = [("REPRISE_HTTP_SAIDA__PERMITIDOS", "a.example, 127.0.0.1")];
    let shown = load(LEAST, &by_env).settings();
    let row = shown.iter().find(|row| row.key == "http_saida.permitidos").expect("a row");
    assert_eq!(row.value, "a.example,127.0.0.1");
}

#[test]
fn an_authority_is_read_with_the_configuration() {
    let text = |path: &str| LEAST.replace("notificar\"", &format!("notificar\"\nca_arquivo = \"{path}\""));
    let good = Scratch::new("-----BEGIN CERTIFICATE-----\n");
    assert!(load(&text(good.path()), &[]).effects[0].authorities.is_some());
    let bad = Scratch::new("not a certificate");
    assert!(problem(&text(bad.path()), &[]).contains("ca_arquivo: holds no certificate"));
    assert!(problem(&text("/nowhere/ca.pem"), &[]).contains("ca_arquivo: cannot read /nowhere/ca.pem"));
}

#[test]
fn ages_are_at_least_a_day() {
    let config = load(&with("retencao", "livro = \"9600h\"\narquivo = \"48h\""), &[]);
    assert_eq!(config.retention.ledger, Some(Duration::from_hours(9_600)));
    assert_eq!((config.retention.evidence, config.retention.archive), (None, Some(Duration::from_hours(48))));
    assert!(problem(&with("retencao", "evidencia = \"1h\""), &[]).contains("retencao.evidencia"));
}
