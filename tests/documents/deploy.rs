//! The manifests, the chart and the component: Kubernetes' own tools take them, their configuration loads, and they agree
//! with the image and with the code.

use std::time::Duration;

use idem_proxy::config::{self, Config, Listen};
use serde_json::{Value, json};

use crate::{
    image::{instruction, words},
    markdown::file,
    tools::{fails, program, succeeds, tool, yaml},
};

const CHART: &str = "deploy/helm/idem-proxy";

/// What stands in the same pod as the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A service, which the proxy stands in front of.
    Service,
    /// A Job, whose calls go through the proxy.
    Job,
}

/// One way to run the proxy, rendered.
#[derive(Debug)]
struct Deployment {
    name: &'static str,
    role: Role,
    text: String,
    documents: Vec<Value>,
}

impl Deployment {
    fn new(name: &'static str, role: Role, text: String) -> Self {
        let documents = yaml(&text);
        Self {
            name,
            role,
            text,
            documents,
        }
    }

    fn manifest(name: &'static str, role: Role) -> Self {
        Self::new(name, role, file(name))
    }

    /// The document of this kind.
    fn kind(&self, kind: &str) -> &Value {
        let mut found = self.documents.iter().filter(|it| it["kind"] == kind);
        let document = found
            .next()
            .unwrap_or_else(|| panic!("{}: no {kind}", self.name));
        assert_eq!(found.next(), None, "{}: more than one {kind}", self.name);
        document
    }

    /// The template's `spec` in what makes the pods.
    fn pod(&self) -> &Value {
        let workload = match self.role {
            Role::Service => self.kind("Deployment"),
            Role::Job => self.kind("Job"),
        };
        &workload["spec"]["template"]["spec"]
    }

    fn sidecar(&self) -> &Value {
        let sidecar = &self.pod()["initContainers"][0];
        assert_eq!(sidecar["name"], "idem-proxy", "{}", self.name);
        sidecar
    }

    fn app(&self) -> &Value {
        &self.pod()["containers"][0]
    }

    /// What its `proxy.toml` and the container's environment make together, which must leave nothing to warn of.
    fn config(&self) -> Config {
        let text = self.kind("ConfigMap")["data"]["proxy.toml"].as_str();
        let variables = self.sidecar()["env"].as_array().into_iter().flatten();
        let variables = variables.map(|it| {
            let secret = &it["valueFrom"]["secretKeyRef"];
            let value = match it["value"].as_str() {
                Some(value) => value.to_owned(),
                None if secret["key"] == "url" => "redis://user:password@redis:6379".to_owned(),
                None => panic!("{}: {it}", self.name),
            };
            (string(&it["name"]), value)
        });
        let loaded = config::parse(self.name, text.expect("a file"), variables).loaded();
        let loaded = loaded.unwrap_or_else(|problems| panic!("{}: {problems}", self.name));
        assert_eq!(loaded.warnings, Vec::<String>::new(), "{}", self.name);
        loaded.config
    }
}

fn services() -> Vec<Deployment> {
    single().into_iter().chain(shared()).collect()
}

/// Those whose pods share a Redis.
fn shared() -> Vec<Deployment> {
    let mut helm = tool("bin/helm");
    helm.args(["template", "payments", CHART, "--set"]);
    helm.arg("app.image=payments:1.0.0,replicas=3,redis.urlSecret=idem-proxy-redis");
    let mut kustomize = tool("bin/kubectl");
    kustomize.args(["kustomize", "deploy/kustomize/example-redis"]);
    vec![
        Deployment::new("the chart, Redis", Role::Service, succeeds(&mut helm)),
        Deployment::new(
            "the components, Redis",
            Role::Service,
            succeeds(&mut kustomize),
        ),
    ]
}

fn single() -> Vec<Deployment> {
    let mut helm = tool("bin/helm");
    helm.args(["template", "payments", CHART]);
    helm.args([
        "--set",
        "app.image=payments:1.0.0,app.readinessPath=/healthz",
    ]);
    let mut kustomize = tool("bin/kubectl");
    kustomize.args(["kustomize", "deploy/kustomize/example"]);
    vec![
        Deployment::manifest("deploy/kubernetes/sidecar.yaml", Role::Service),
        Deployment::new("the chart", Role::Service, succeeds(&mut helm)),
        Deployment::new("the component", Role::Service, succeeds(&mut kustomize)),
    ]
}

fn all() -> Vec<Deployment> {
    let job = Deployment::manifest("deploy/kubernetes/job.yaml", Role::Job);
    services().into_iter().chain([job]).collect()
}

fn string(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs(value.as_u64().expect("seconds"))
}

/// The ports of these listeners that are on all addresses, and of those on loopback.
fn ports(listeners: &[Listen]) -> (Vec<u16>, Vec<u16>) {
    let on = |host: &str| {
        let tcp = listeners.iter().filter_map(|listen| match listen {
            Listen::Tcp(address) => address.strip_prefix(host)?.strip_prefix(':'),
            Listen::Unix(_) => None,
        });
        tcp.map(|port| port.parse().expect("a port")).collect()
    };
    (on("0.0.0.0"), on("127.0.0.1"))
}

#[test]
fn they_are_what_the_api_of_each_version_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    for deployment in all() {
        let path = folder.path().join("rendered.yaml");
        std::fs::write(&path, &deployment.text).expect("written");
        for version in ["1.30", "1.33", "1.37"] {
            let mut validate = tool("venv/bin/kubernetes-validate");
            succeeds(validate.args(["--strict", "-k", version]).arg(&path));
        }
        // Not every tool that says nothing has looked.
        let bent = deployment
            .text
            .replacen("restartPolicy: Always", "restartPolicies: Always", 1);
        std::fs::write(&path, bent).expect("written");
        fails(
            tool("venv/bin/kubernetes-validate")
                .args(["--strict", "-k", "1.37"])
                .arg(&path),
        );
    }
}

#[test]
fn their_configurations_load_without_a_warning_and_protect_something() {
    for deployment in all() {
        assert!(!deployment.config().routes.is_empty(), "{deployment:?}");
    }
}

#[test]
fn ports_are_the_same_everywhere() {
    for deployment in all() {
        let config = deployment.config();
        let (clients, _) = ports(&config.server.listen);
        let (admin, loopback) = ports(&config.admin.listen);
        let sidecar = deployment.sidecar();
        let open: Vec<_> = [clients.clone(), admin].concat();
        let declared = sidecar["ports"].as_array().expect("ports");
        let declared: Vec<_> = declared.iter().map(|it| &it["containerPort"]).collect();
        assert_eq!(json!(declared), json!(open), "{}", deployment.name);
        let name = &sidecar["ports"][open.len() - 1]["name"];
        for (probe, path) in [("startupProbe", "/readyz"), ("livenessProbe", "/livez")] {
            let asked = &sidecar[probe]["httpGet"];
            assert_eq!((&asked["port"], &asked["path"]), (name, &json!(path)));
        }
        if deployment.role == Role::Service {
            let exposed = open.iter().map(u16::to_string).collect::<Vec<_>>();
            assert_eq!(instruction("EXPOSE"), exposed.join(" "));
            let service = deployment.kind("Service");
            assert_eq!(service["spec"]["ports"][0]["targetPort"], clients[0]);
            assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/readyz");
            let probed = &deployment.app()["readinessProbe"]["httpGet"]["port"];
            assert!(
                probed.is_null() || *probed == clients[0],
                "the app is probed through the proxy"
            );
            assert_eq!(loopback.len(), 1, "drain needs it");
        }
    }
}

#[test]
fn the_container_is_confined_and_its_user_is_the_images() {
    let user = instruction("USER");
    let (user, group) = user.split_once(':').expect("user and group");
    for deployment in all() {
        let confined = json!({
            "runAsUser": user.parse::<u32>().expect("a number"),
            "runAsGroup": group.parse::<u32>().expect("a number"),
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        });
        let sidecar = deployment.sidecar();
        assert_eq!(sidecar["securityContext"], confined, "{}", deployment.name);
        assert_eq!(sidecar["restartPolicy"], "Always", "a native sidecar");
        assert!(sidecar["resources"]["limits"]["memory"].is_string());
        assert_eq!(deployment.pod()["enableServiceLinks"], false);
    }
}

#[test]
fn the_command_is_the_images_own_and_its_file_is_mounted() {
    let version = env!("CARGO_PKG_VERSION");
    let command = words("CMD");
    for deployment in all() {
        let sidecar = deployment.sidecar();
        assert_eq!(sidecar["args"], json!(command), "{}", deployment.name);
        let mount = &sidecar["volumeMounts"][0];
        assert_eq!(command[1], string(&mount["mountPath"]) + "/proxy.toml");
        let volume = &deployment.pod()["volumes"][0];
        assert_eq!(volume["name"], mount["name"]);
        let name = &deployment.kind("ConfigMap")["metadata"]["name"];
        assert_eq!(volume["configMap"]["name"], *name, "{}", deployment.name);
        let image = string(&sidecar["image"]);
        assert!(image.ends_with(&format!("idem-proxy:{version}")), "{image}");
    }
    assert!(file("CHANGELOG.md").contains(&format!("\n## {version}\n")));
    let chart = &yaml(&file("deploy/helm/idem-proxy/Chart.yaml"))[0];
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&json!(version), &json!(version))
    );
}

#[test]
fn a_termination_drains_first_and_has_time_for_all_that_comes_one_after_the_other() {
    let drain: Vec<String> = words("ENTRYPOINT")
        .into_iter()
        .chain(["drain".to_owned()])
        .chain(words("CMD"))
        .collect();
    for deployment in services() {
        let config = deployment.config();
        let lifecycle = &deployment.sidecar()["lifecycle"];
        assert_eq!(lifecycle["preStop"]["exec"]["command"], json!(drain));
        let server = config.server;
        assert!(server.drain_delay > Duration::ZERO, "endpoints lag behind");
        let sleep = seconds(&deployment.app()["lifecycle"]["preStop"]["sleep"]["seconds"]);
        let drained = server.drain_delay + server.drain_timeout;
        assert!(sleep >= drained, "{}: {sleep:?}", deployment.name);
        let app = config.upstreams[0].response_timeout;
        let grace = seconds(&deployment.pod()["terminationGracePeriodSeconds"]);
        assert!(sleep + app < grace, "{}: {grace:?}", deployment.name);
    }
}

#[test]
fn a_job_has_nothing_that_waits_for_its_end() {
    let job = Deployment::manifest("deploy/kubernetes/job.yaml", Role::Job);
    assert_eq!(job.sidecar()["lifecycle"], Value::Null);
    let server = job.config().server;
    let grace = seconds(&job.pod()["terminationGracePeriodSeconds"]);
    assert!(server.drain_delay + server.drain_timeout < grace);
    assert_ne!(job.pod()["restartPolicy"], "Always");
}

#[test]
fn one_replica_at_a_time_has_the_records() {
    for deployment in single() {
        assert_eq!(deployment.config().store.kind, config::StoreKind::Memory);
        let spec = &deployment.kind("Deployment")["spec"];
        assert_eq!(spec["replicas"], 1, "{}", deployment.name);
        assert_eq!(spec["strategy"], json!({ "type": "Recreate" }));
    }
}

#[test]
fn several_replicas_share_a_redis_and_are_replaced_one_by_one() {
    for deployment in shared() {
        assert_eq!(deployment.config().store.kind, config::StoreKind::Redis);
        let spec = &deployment.kind("Deployment")["spec"];
        assert_eq!(spec["replicas"], 3, "{}", deployment.name);
        let rolling = json!({
            "type": "RollingUpdate",
            "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 },
        });
        assert_eq!(spec["strategy"], rolling, "{}", deployment.name);
        let env = deployment.sidecar()["env"].as_array().expect("variables");
        let url = env
            .iter()
            .find(|it| it["name"] == "IDEM_PROXY_STORE__REDIS__URL");
        let secret = json!({ "name": "idem-proxy-redis", "key": "url" });
        assert_eq!(url.expect("a URL")["valueFrom"]["secretKeyRef"], secret);
    }
}

#[test]
fn the_chart_refuses_values_that_it_does_not_know() {
    succeeds(tool("bin/helm").args(["lint", "--strict", CHART, "--set", "app.image=a:1"]));
    for (values, named) in [
        ("app.port=3000", "/app/image"),
        ("app.image=a:1,proxy.prot=1", "prot"),
        ("app.image=a:1,replicas=2", "redis.urlSecret"),
        (
            "app.image=a:1,proxy.drainTimeoutSeconds=25s",
            "drainTimeoutSeconds",
        ),
    ] {
        let said = fails(tool("bin/helm").args(["template", "x", CHART, "--set", values]));
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn the_version_is_one_line() {
    let said = succeeds(program(env!("CARGO_BIN_EXE_idem-proxy")).arg("--version"));
    assert_eq!(said, format!("idem-proxy {}\n", env!("CARGO_PKG_VERSION")));
}
