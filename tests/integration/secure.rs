//! Encrypted and authenticated on every side: Kafka by SCRAM over TLS and by client certificate, Postgres with
//! `verify-full`, providers with an authority of their own. Against native servers with certificates made here.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::event::event;
use crate::support::kafka::{Kafka, Outgoing};
use crate::support::native::{as_postgres, postgres_program};
use crate::support::process::Process;
use crate::support::world::free_port;
use crate::support::{LATER, SOON, Setup, World, eventually, until};

/// An authority, what it vouched for, and one that nobody knows.
struct Certificates {
    authority: PathBuf,
    stranger: PathBuf,
    server: Pair,
    client: Pair,
}

struct Pair {
    certificate: PathBuf,
    key: PathBuf,
    /// Key and certificate in one file, as Kafka wants them.
    store: PathBuf,
}

impl Certificates {
    fn make(dir: &Path) -> Self {
        let (issuer, stranger) = (authority("reprise test authority"), authority("a stranger"));
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).expect("a certificate file");
            path
        };
        let pair = |name: &str, usage: ExtendedKeyUsagePurpose| {
            let mut params =
                CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            Pair {
                certificate: write(&format!("{name}.crt"), &certificate.pem()),
                key: write(&format!("{name}.key"), &key.serialize_pem()),
                store: write(
                    &format!("{name}.pem"),
                    &format!("{}{}", key.serialize_pem(), certificate.pem()),
                ),
            }
        };
        Self {
            server: pair("server", ExtendedKeyUsagePurpose::ServerAuth),
            client: pair("client", ExtendedKeyUsagePurpose::ClientAuth),
            authority: write("authority.crt", &issuer.pem()),
            stranger: write("stranger.crt", &stranger.pem()),
        }
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A broker with a plain listener for the test and two secure ones for the program.
struct SecureKafka {
    plain: String,
    sasl: String,
    mutual: String,
    _process: Process,
}

const USER: &str = "reprise";
const PASSWORD: &str = "kafka-s3nha";

impl SecureKafka {
    async fn start(dir: &Path, certificates: &Certificates) -> Self {
        let jars =
            Command::new(format!("{}/deploy/dev/stack.sh", env!("CARGO_MANIFEST_DIR"))).arg("jars").output();
        let jars = String::from_utf8(jars.expect("the stack's script").stdout).expect("a path");
        let classpath = format!("{}/*", jars.trim());
        let ports: Vec<String> = (0..4).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let (plain, sasl, mutual, control) = (&ports[0], &ports[1], &ports[2], &ports[3]);
        let advertised = format!("PLAIN://{plain},SASL://{sasl},MUTUAL://{mutual}");
        let properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{control}\n\
             listeners={advertised},CONTROLLER://{control}\nadvertised.listeners={advertised}\n\
             listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL\n\
             inter.broker.listener.name=PLAIN\ncontroller.listener.names=CONTROLLER\nlog.dirs={data}\n\
             ssl.keystore.type=PEM\nssl.keystore.location={store}\nssl.truststore.type=PEM\n\
             ssl.truststore.location={trust}\nlistener.name.mutual.ssl.client.auth=required\n\
             listener.name.sasl.sasl.enabled.mechanisms=SCRAM-SHA-512\n\
             listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
             offsets.topic.replication.factor=1\noffsets.topic.num.partitions=2\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             group.initial.rebalance.delay.ms=0\nauto.create.topics.enable=false\n",
            data = dir.join("kafka").display(),
            store = certificates.server.store.display(),
            trust = certificates.authority.display(),
        );
        let file = dir.join("server.properties");
        fs::write(&file, properties).expect("the broker's settings");
        let scram = format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]");
        let mut format = Command::new("java");
        format.args([
            "-cp",
            &classpath,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "4L6g3nShT-eMCtK--X86sw",
            "-c",
        ]);
        format.arg(&file).args(["--add-scram", &scram]);
        let ended = Process::start(format, dir, "kafka-format").ended(LATER).await;
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        let mut command = Command::new("java");
        let quiet =
            format!("-Dlog4j2.configurationFile={}/deploy/dev/kafka/log4j2.yaml", env!("CARGO_MANIFEST_DIR"));
        command.args(["-Xmx384m", &quiet, "-cp", &classpath, "kafka.Kafka"]).arg(&file);
        let running = Process::start(command, dir, "kafka");
        let broker =
            Self { plain: plain.clone(), sasl: sasl.clone(), mutual: mutual.clone(), _process: running };
        until("the broker listens", LATER, async || {
            tokio::net::TcpStream::connect(broker.sasl.as_str()).await.is_ok()
                && tokio::net::TcpStream::connect(broker.plain.as_str()).await.is_ok()
        })
        .await;
        broker
    }
}

/// A Postgres that takes encrypted connections only.
struct SecurePostgres {
    port: u16,
    dir: PathBuf,
    process: Option<Process>,
}

impl SecurePostgres {
    async fn start(logs: &Path, certificates: &Certificates) -> Self {
        // Its user cannot enter the folder of the test.
        let dir = std::env::temp_dir().join(format!("reprise-tls-{}", Uuid::new_v4().simple()));
        fs::create_dir_all(&dir).expect("a folder");
        let owner = as_postgres("id").arg("-un").output().expect("the user of Postgres");
        let owner = String::from_utf8(owner.stdout).expect("a name").trim().to_owned();
        let (key, data) = (dir.join("server.key"), dir.join("data"));
        fs::copy(&certificates.server.certificate, dir.join("server.crt")).expect("the certificate");
        fs::copy(&certificates.server.key, &key).expect("the key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
        let given = Command::new("chown").arg("-R").arg(&owner).arg(&dir).status().expect("chown is there");
        assert!(given.success());
        let mut init = as_postgres(postgres_program("initdb"));
        init.arg("-D").arg(&data).args([
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        let ended = Process::start(with_dir(init, &dir), logs, "initdb").ended(LATER).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        fs::write(data.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 trust\n").expect("the host rules");
        let port = free_port();
        let mut server = as_postgres(postgres_program("postgres"));
        server.arg("-D").arg(&data).args([
            "-p",
            &port.to_string(),
            "-h",
            "127.0.0.1",
            "-k",
            "",
            "-c",
            "ssl=on",
            "-c",
        ]);
        server.arg(format!("ssl_cert_file={}", dir.join("server.crt").display())).arg("-c");
        server.arg(format!("ssl_key_file={}", key.display()));
        let process = Process::start(with_dir(server, &dir), logs, "postgres");
        let postgres = Self { port, dir, process: Some(process) };
        let mut connection = eventually("Postgres answers", LATER, async || {
            PgConnection::connect(&postgres.url("postgres", "require", None)).await.ok()
        })
        .await;
        sqlx::raw_sql("create database reprise").execute(&mut connection).await.expect("a database");
        postgres
    }

    fn url(&self, database: &str, mode: &str, authority: Option<&Path>) -> String {
        let root = authority.map(|path| format!("&sslrootcert={}", path.display())).unwrap_or_default();
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode={mode}{root}", self.port)
    }
}

fn with_dir(mut command: Command, dir: &Path) -> Command {
    command.current_dir(dir);
    command
}

impl Drop for SecurePostgres {
    fn drop(&mut self) {
        self.process.take();
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// A provider that speaks TLS only and says yes; it counts the requests that came through.
fn secure_provider(certificates: &Certificates) -> (String, Arc<AtomicUsize>) {
    let chain = CertificateDer::pem_file_iter(&certificates.server.certificate).expect("the certificate");
    let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&certificates.server.key).expect("the key");
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a server");
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let address = listener.local_addr().expect("an address");
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Ok(session) = rustls::ServerConnection::new(Arc::clone(&config)) else { continue };
            let mut tls = rustls::StreamOwned::new(session, stream);
            let mut request = Vec::new();
            let mut part = [0; 4096];
            // The body is a small JSON object, the last thing of the request.
            while !request.ends_with(b"}") {
                match tls.read(&mut part) {
                    Ok(read @ 1..) => request.extend_from_slice(&part[..read]),
                    _ => break,
                }
            }
            if request.ends_with(b"}") {
                counted.fetch_add(1, Ordering::SeqCst);
                tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").ok();
                tls.conn.send_close_notify();
                tls.flush().ok();
            }
        }
    });
    (format!("https://{address}/notificar"), served)
}

/// One world for all, because two servers take their time to start.
#[tokio::test]
async fn every_side_can_be_encrypted_and_authenticated_and_a_stranger_is_refused() {
    let mut world = World::bare(Setup::default()).await;
    let dir = world.dir().to_owned();
    let certificates = Certificates::make(&dir);
    let (kafka, postgres) =
        tokio::join!(SecureKafka::start(&dir, &certificates), SecurePostgres::start(&dir, &certificates));
    let (provider, served) = secure_provider(&certificates);
    let plain = Kafka::connect(&kafka.plain);
    for topic in [&world.topic, &world.dlq_topic] {
        plain.create_topic(topic, 2, &[("retention.ms", "-1")]).await;
    }
    let effect = ["efeitos", "notificar-vendedor"];
    world.set(&[effect[0], effect[1], "url"], provider);
    world.set(&[effect[0], effect[1], "ca_arquivo"], certificates.authority.display().to_string());

    postgres_refuses_a_stranger(&mut world, &postgres, &certificates).await;
    world.set(&["postgres", "url"], postgres.url("reprise", "verify-full", Some(&certificates.authority)));
    world.cli(&["migrate"]).await;

    let pool = postgres.url("reprise", "require", None);
    let done = async || {
        let mut connection = PgConnection::connect(&pool).await.ok()?;
        let count = "select count(*) from efeito_aplicado where estado = 'concluido'";
        sqlx::query_scalar::<_, i64>(count).fetch_one(&mut connection).await.ok()
    };
    for (n, properties) in [(1, by_password(&certificates)), (2, by_certificate(&certificates))] {
        world.set(&["kafka", "brokers"], if n == 1 { kafka.sasl.clone() } else { kafka.mutual.clone() });
        world.set(&["kafka", "propriedades"], properties);
        let mut live = world.live().await;
        plain.produce(&world.topic, &Outgoing::event(&event(n))).await;
        until("the effect is done", SOON, async || done().await == Some(i64::from(n))).await;
        live.terminate();
        let ended = live.ended(LATER).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stderr.contains(PASSWORD));
    }
    assert_eq!(served.load(Ordering::SeqCst), 2);
    provider_refused(&mut world, &plain, &certificates).await;
    assert_eq!(served.load(Ordering::SeqCst), 2);
}

async fn postgres_refuses_a_stranger(
    world: &mut World,
    postgres: &SecurePostgres,
    certificates: &Certificates,
) {
    for url in [
        postgres.url("reprise", "verify-full", Some(&certificates.stranger)),
        postgres.url("reprise", "disable", None),
        // The certificate is for 127.0.0.1 and localhost.
        postgres
            .url("reprise", "verify-full", Some(&certificates.authority))
            .replace("@127.0.0.1", "@127.0.0.2"),
    ] {
        world.set(&["postgres", "url"], url.clone());
        let refused = world.try_cli(&["migrate"]).await;
        assert_eq!(refused.code, Some(1), "{url}: {}", refused.stderr);
    }
}

/// Without the authority nothing is sent: the effect waits, and its evidence says why.
async fn provider_refused(world: &mut World, plain: &Kafka, certificates: &Certificates) {
    world.set(&["efeitos", "notificar-vendedor", "ca_arquivo"], certificates.stranger.display().to_string());
    let running = world.live().await;
    plain.produce(&world.topic, &Outgoing::event(&event(3))).await;
    let line = eventually("the refusal is in evidence", SOON, async || {
        let shown =
            world.try_cli(&["effects", "show", "evt-3-1:notificar-vendedor", "--output", "json"]).await;
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).ok()?;
        shown["evidencia"].as_array().filter(|lines| !lines.is_empty()).map(|lines| lines[0].clone())
    })
    .await;
    assert_eq!(line["resposta"], "nao-enviado", "{line}");
    assert!(line["detalhe"].as_str().is_some_and(|text| text.contains("certificate")), "{line}");
    drop(running);
}

fn by_password(certificates: &Certificates) -> toml::Table {
    let mut properties = toml::toml! {
        "security.protocol" = "SASL_SSL"
        "sasl.mechanism" = "SCRAM-SHA-512"
    };
    properties.insert("sasl.username".to_owned(), USER.into());
    properties.insert("sasl.password".to_owned(), PASSWORD.into());
    properties.insert("ssl.ca.location".to_owned(), certificates.authority.display().to_string().into());
    properties
}

fn by_certificate(certificates: &Certificates) -> toml::Table {
    let mut properties = toml::toml! { "security.protocol" = "SSL" };
    for (name, path) in [
        ("ssl.ca.location", &certificates.authority),
        ("ssl.certificate.location", &certificates.client.certificate),
        ("ssl.key.location", &certificates.client.key),
    ] {
        properties.insert(name.to_owned(), path.display().to_string().into());
    }
    properties
}
