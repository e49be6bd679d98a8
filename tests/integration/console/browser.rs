//! The stories of a replay and of a decision, as people play them: in a real Chromium.
//!
//! `REPRISE_SCREENSHOTS=FOLDER` keeps pictures of the pages at three widths.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::json;

use super::{TOKEN, pictures, two_orders_told_wrongly, world};
use crate::support::{Answer, LATER, SOON, World, eventually};

const WIDTHS: [(&str, u32, u32); 3] = [("phone", 400, 1000), ("tablet", 820, 1100), ("desktop", 1280, 1250)];

/// A browser and its driver; the driver is ended with it.
pub struct Browser {
    pub client: Client,
    driver: Child,
    base: String,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}

impl Browser {
    /// In São Paulo, with further arguments for Chromium.
    pub async fn open(world: &World, more: &[&str]) -> Self {
        let socket = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = socket.local_addr().expect("an address").port();
        drop(socket);
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .env("TZ", "America/Sao_Paulo")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed (make up installs it)");
        let mut args = vec![
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ];
        args.extend(more);
        let mut capabilities = serde_json::Map::new();
        capabilities.insert("goog:chromeOptions".to_owned(), json!({ "args": args }));
        let url = format!("http://127.0.0.1:{port}");
        let client = eventually("the browser is open", LATER, async || {
            ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
                .capabilities(capabilities.clone())
                .connect(&url)
                .await
                .ok()
        })
        .await;
        Self { client, driver, base: format!("http://127.0.0.1:{}", world.http_port) }
    }

    pub async fn goto(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    pub async fn text(&self, css: &str) -> String {
        self.wait(css).await.text().await.unwrap_or_else(|e| panic!("{css}: {e}"))
    }

    pub async fn wait(&self, css: &str) -> fantoccini::elements::Element {
        let found = self.client.wait().at_most(SOON).for_element(Locator::Css(css)).await;
        match found {
            Ok(found) => found,
            Err(error) => {
                panic!("{css} is not there ({error}):\n{}", self.client.source().await.unwrap_or_default())
            }
        }
    }

    pub async fn click(&self, css: &str) {
        self.wait(css).await.click().await.unwrap_or_else(|e| panic!("{css}: {e}"));
    }

    pub async fn fill(&self, css: &str, text: &str) {
        let input = self.wait(css).await;
        input.clear().await.unwrap_or_else(|e| panic!("{css}: {e}"));
        input.send_keys(text).await.unwrap_or_else(|e| panic!("{css}: {e}"));
    }

    /// Signs in by the door.
    pub async fn sign_in(&self) {
        self.goto("/console").await;
        self.fill("input[name=token]", TOKEN).await;
        self.click("main form button").await;
        self.wait(".tiles").await;
    }

    /// The page as it is, at three widths.
    pub async fn picture(&self, name: &str) {
        let Some(folder) = pictures() else { return };
        for (width, x, y) in WIDTHS {
            self.keep(&folder, &format!("{name}-{width}"), x, y).await;
        }
    }

    async fn keep(&self, folder: &Path, name: &str, width: u32, height: u32) {
        self.client.set_window_size(width, height).await.expect("a window can be sized");
        let png = self.client.screenshot().await.expect("a picture");
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(folder.join(format!("console-{name}.png")), png).expect("a file");
    }

    pub async fn close(self) {
        self.client.clone().close().await.expect("the browser closes");
    }
}

#[tokio::test]
async fn a_person_plans_rehearses_and_runs_a_replay_in_the_browser() {
    let world = world().await;
    two_orders_told_wrongly(&world).await;
    let _live = world.live().await;
    let browser = Browser::open(&world, &[]).await;
    browser.sign_in().await;

    browser.goto("/console/replays/new?periodo=dia&fim=2026-10-14T08:00:00Z&ate=2026-10-14T04:00:00Z").await;
    assert_eq!(browser.text(".zone").await, "America/Sao_Paulo");
    // The one bar that is there: 00:00 in São Paulo.
    browser.click("svg.bars a[aria-label^='6 records']").await;
    let from = browser.wait("input[name=de]").await.prop("value").await.expect("a property");
    assert!(from.as_deref().is_some_and(|from| from.starts_with("2026-10-14T00:00")), "{from:?}");
    browser.picture("new-replay").await;
    browser.fill("input[name=id]", "replay-browser").await;
    browser.fill("#new input[name=por]", "ana").await;
    browser.click("#new > button").await;

    assert_eq!(browser.text("#registros").await, "6");
    browser.picture("plan").await;
    browser.click("button[name=simular]").await;
    browser.wait("#situacao[data-situacao=concluido]").await;
    assert_eq!(browser.text("#pedidos-alterados").await, "2");
    assert_eq!(browser.text("h1").await, "Dry run of replay-browser");
    browser.picture("dry-run").await;
    let down = "document.getElementById('diff').scrollIntoView()";
    browser.client.execute(down, Vec::new()).await.expect("the diff is there");
    browser.picture("diff").await;
    assert_eq!(world.commissions().await["ped-1"], 50, "nothing was changed yet");

    browser.click("button[value=executar]").await;
    eventually("the replay has changed the commissions", LATER, async || {
        (world.commissions().await["ped-1"] == 500).then_some(())
    })
    .await;
    browser.wait("#situacao[data-situacao=concluido]").await;
    assert_eq!(browser.text("h1").await, "Replay replay-browser");
    assert_eq!(world.commissions().await["ped-2"], 500);
    assert_eq!(world.provider.count(), 6, "nobody was called again");
    browser.picture("replay").await;
    browser.close().await;
}

#[tokio::test]
async fn a_person_decides_and_the_one_who_comes_second_is_told() {
    let world = world().await;
    world.provider.script("ped-0", [Answer::Close]);
    world.provider.script("ped-1", [Answer::Status(422)]);
    let _live = world.live().await;
    world.feed(0, 2).await;
    world.settled().await;
    let browser =
        Browser::open(&world, &["--accept-lang=pt-BR", "--blink-settings=preferredColorScheme=0"]).await;
    browser.sign_in().await;
    // Looked at every ten seconds.
    eventually("the overview knows what is uncertain", SOON, async || {
        browser.goto("/console").await;
        browser.client.find(Locator::Css("a.tile.bad")).await.ok()
    })
    .await;
    browser.picture("overview-dark").await;
    browser.goto("/console/effects").await;
    assert_eq!(browser.text("h1").await, "Efeitos em revisão");
    browser.picture("review-dark").await;
    browser.click("td a").await;
    assert!(browser.text(".history").await.contains("nenhuma resposta prova o que aconteceu"));
    browser.picture("effect-dark").await;
    browser.click("input[value=concluido]").await;
    browser.fill("input[name=por]", "ana").await;
    browser.fill("textarea[name=motivo]", "visto no painel").await;

    // Somebody decides on the command line while she types.
    let key = "evt-0-1:notificar-vendedor";
    world
        .cli(&["effects", "resolve", key, "--as", "descartado", "--by", "rui", "--reason", "pedido antigo"])
        .await;
    browser.click("#decide button").await;
    assert_eq!(browser.text("h1").await, "Outra pessoa foi mais rápida");
    assert!(browser.text("[role=alert]").await.contains("rui decided descartado"));
    let by: String = world.one("select por from revisao_efeito").await;
    assert_eq!(by, "rui");

    browser.goto("/console/dead-letters").await;
    browser.picture("dead-letters-dark").await;
    browser.click("td a").await;
    assert!(browser.text("main pre").await.contains("\"pedidoId\": \"ped-1\""));
    browser.goto("/console/dead-letters").await;
    browser.click("td input[name=id]").await;
    browser.click("button[value=escolhidas]").await;
    assert_eq!(browser.text("button.danger").await, "Fazer redrive de 1 cartas mortas");
    assert_eq!(world.provider.count_of("ped-1"), 1, "a rehearsal calls nobody");
    browser.click("button.danger").await;
    browser.wait(".box.good").await;
    assert_eq!(world.provider.count_of("ped-1"), 2);
    browser.close().await;
}
