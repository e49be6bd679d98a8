//! What a world looks like before a case changes it.

use super::kafka_servers;
use super::world::World;

/// What a case wants otherwise than usual.
pub struct Setup {
    pub partitions: i32,
    pub dlq_partitions: i32,
    pub topic_config: Vec<(&'static str, &'static str)>,
    /// Effect types, with settings over the usual ones.
    pub effects: Vec<(&'static str, toml::Table)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            partitions: 3,
            dlq_partitions: 1,
            topic_config: Vec::new(),
            effects: vec![("notificar-vendedor", toml::Table::new())],
        }
    }
}

/// Short limits: what a deployment waits seconds for, a case should see at once.
pub fn usual_config(world: &World, effects: Vec<(&'static str, toml::Table)>) -> toml::Table {
    let mut config = toml::toml! {
        [kafka]
        [kafka.propriedades]
        "session.timeout.ms" = "6000"
        [postgres]
        max_conexoes = 8
        [http]
        [varredura]
        intervalo = "1s"
        [efeitos]
    };
    let mut set = |section: &str, key: &str, value: String| {
        config[section].as_table_mut().expect("a section").insert(key.to_owned(), value.into());
    };
    set("kafka", "brokers", kafka_servers());
    set("kafka", "topico", world.topic.clone());
    set("kafka", "grupo", world.group.clone());
    set("kafka", "topico_dlq", world.dlq_topic.clone());
    set("postgres", "url", world.database_url.clone());
    set("http", "endereco", format!("127.0.0.1:{}", world.http_port));
    for (effect, settings) in effects {
        let mut table = toml::toml! {
            modo = "aplicar"
            ao_falhar = "manter"
            prazo = "1s"
            reserva = "3s"
            max_tentativas = 5
            recuo_inicial = "50ms"
            recuo_maximo = "500ms"
            concorrencia = 64
        };
        table.insert("url".to_owned(), world.provider.url().into());
        table.extend(settings);
        let effects = config["efeitos"].as_table_mut().expect("a section");
        effects.insert(effect.to_owned(), table.into());
    }
    config
}
