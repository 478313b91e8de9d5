// Package monitoring_test checks the alert rules and the dashboard for Prometheus and Grafana, with promtool.
package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	alertsFile    = "alerts.yaml"
	dashboardFile = "dashboard.json"
	howTo         = "../docs/howto/monitoring.md"
	howToURL      = "https://github.com/stowage-io/stowage/blob/main/docs/howto/monitoring.md#"
)

// alert is a rule of alerts.yaml.
type alert struct {
	Alert, Expr string
	Annotations map[string]string
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal([]byte(read(t, alertsFile)), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) == 0 {
		t.Fatalf("%s has not one group with rules", alertsFile)
	}
	return file.Groups[0].Rules
}

// queries returns the queries of the dashboard, by the titles of panels.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	var board struct {
		Panels []struct {
			Title, Description string
			Targets            []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &board); err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, p := range board.Panels {
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || found[p.Title] != nil {
			t.Errorf("panel %q has no title of its own, no description, or no query", p.Title)
		}
		for _, target := range p.Targets {
			found[p.Title] = append(found[p.Title], target.Expr)
		}
	}
	return found
}

// promtool runs promtool with a file of this content, in JSON, which is YAML.
func promtool(t *testing.T, content any, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool of Debian's package prometheus; `make monitoring` installs it")
	}
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", append(args, file)...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// An alert says what it is about and what to do, and the how-to has a section about it.
func TestAlertsSayWhatToDo(t *testing.T) {
	page := read(t, howTo)
	for _, a := range alerts(t) {
		for _, annotation := range []string{"summary", "description"} {
			if a.Annotations[annotation] == "" {
				t.Errorf("%s has no %s", a.Alert, annotation)
			}
		}
		if got, want := a.Annotations["runbook_url"], howToURL+strings.ToLower(a.Alert); got != want {
			t.Errorf("%s: the link is %q, want %q", a.Alert, got, want)
		}
		if !strings.Contains(page, "\n### "+a.Alert+"\n") {
			t.Errorf("%s has no section about %s", howTo, a.Alert)
		}
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// Prometheus understands the configuration in the how-to.
func TestConfigurationOfHowTo(t *testing.T) {
	block := yamlBlock.FindStringSubmatch(read(t, howTo))
	if block == nil {
		t.Fatalf("%s has no configuration", howTo)
	}
	rules, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var config any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(block[1], "/etc/prometheus/stowage-alerts.yaml", rules)), &config); err != nil {
		t.Fatal(err)
	}
	promtool(t, config, "check", "config")
}

var metricName = regexp.MustCompile(`\bstowage_\w+`)

// The rules and the dashboard use metrics that the reference has. Other tests compare the reference
// with what processes serve.
func TestMetricsAreDocumented(t *testing.T) {
	reference := read(t, "../docs/reference/metrics.md")
	texts := []string{}
	for _, a := range alerts(t) {
		texts = append(texts, a.Expr)
	}
	for _, exprs := range queries(t) {
		texts = append(texts, exprs...)
	}
	for _, name := range metricName.FindAllString(strings.Join(texts, "\n"), -1) {
		if name = strings.TrimSuffix(name, "_bucket"); !strings.Contains(reference, "| `"+name+"` |") {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// Prometheus understands each query of the dashboard.
func TestQueriesParse(t *testing.T) {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	type group struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}
	var groups []group
	for title, exprs := range queries(t) {
		g := group{Name: title}
		for i, expr := range exprs {
			g.Rules = append(g.Rules, rule{fmt.Sprint("query:", i), strings.ReplaceAll(expr, "$__rate_interval", "5m")})
		}
		groups = append(groups, g)
	}
	promtool(t, map[string]any{"groups": groups}, "check", "rules")
}

// series is what Prometheus has read of a metric, one value each minute.
type series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// scenario is what an alert is tested with.
type scenario struct {
	// fires has the metrics with which it fires, and quiet those with which it does not, after 150 minutes.
	fires, quiet []series
}

const of = `{job="stowage",instance="a"}`

// with returns the labels of instance a, and others.
func with(labels string) string { return `{job="stowage",instance="a",` + labels + `}` }

// constant returns a metric that does not change.
func constant(metric string, value any) series { return series{metric, fmt.Sprint(value, "x300")} }

var (
	leads   = constant("stowage_server_provisions_environment"+of, 1)
	follows = constant("stowage_server_provisions_environment"+of, 0)
	loop    = with(`scope="machine-0",kind="attach-volume",source="loop"`)
)

// attempts returns a counter of attempts with an outcome, which grows by so many each minute.
func attempts(outcome string, perMinute int) series {
	return series{"stowage_provisioner_operations_total" + strings.TrimSuffix(loop, "}") + `,outcome="` + outcome + `"}`, fmt.Sprintf("0+%dx300", perMinute)}
}

func lastSuccess(values string) series {
	return series{"stowage_provisioner_last_success_timestamp_seconds" + with(`scope="machine-0",source="loop"`), values}
}

// Times are those since the beginning of the test, which is 1970. The alerts are looked at after 150 minutes.
var scenarios = map[string][]scenario{
	"StowageProcessDown": {{
		fires: []series{constant("up"+of, 0)},
		quiet: []series{constant("up"+of, 1), constant(`up{job="other",instance="a"}`, 0)},
	}},
	"StowageStorageInError": {{
		fires: []series{constant("stowage_storage_instances"+with(`pool="loop",kind="block",status="error"`), 2)},
		quiet: []series{
			constant("stowage_storage_instances"+with(`pool="loop",kind="block",status="error"`), 0),
			constant("stowage_storage_instances"+with(`pool="loop",kind="block",status="attached"`), 5),
		},
	}, {
		fires: []series{constant("stowage_storage_instances"+with(`pool="loop",kind="block",status="error"`), 2), leads},
		quiet: []series{constant("stowage_storage_instances"+with(`pool="loop",kind="block",status="error"`), 2), follows},
	}},
	"StowageStorageStuck": {{
		fires: []series{constant("stowage_storage_oldest_timestamp_seconds"+with(`status="detaching"`), 600)},
		quiet: []series{
			constant("stowage_storage_oldest_timestamp_seconds"+with(`status="attached"`), 600),
			{"stowage_storage_oldest_timestamp_seconds" + with(`status="pending"`), "0+60x300"},
		},
	}, {
		fires: []series{constant("stowage_storage_oldest_timestamp_seconds"+with(`status="pending"`), 600), leads},
		quiet: []series{constant("stowage_storage_oldest_timestamp_seconds"+with(`status="pending"`), 600), follows},
	}},
	"StowageOperationStuck": {{
		fires: []series{constant("stowage_provisioner_operations_in_progress"+loop, 1), attempts("success", 0)},
		quiet: []series{constant("stowage_provisioner_operations_in_progress"+loop, 1), attempts("success", 1)},
	}, {
		fires: []series{constant("stowage_provisioner_operations_in_progress"+loop, 1)},
		quiet: []series{constant("stowage_provisioner_operations_in_progress"+loop, 0)},
	}},
	"StowageNoSuccess": {{
		fires: []series{attempts("failure", 1), lastSuccess("600x300")},
		quiet: []series{attempts("failure", 1), lastSuccess("0+60x300")},
	}, {
		fires: []series{attempts("permanent", 1)}, // it has never succeeded
		quiet: []series{attempts("failure", 0), lastSuccess("600x300")},
	}},
	"StowageNearlyFull": {{
		fires: []series{constant("stowage_host_free_bytes"+of, 49), constant("stowage_host_size_bytes"+of, 1000)},
		quiet: []series{constant("stowage_host_free_bytes"+of, 50), constant("stowage_host_size_bytes"+of, 1000)},
	}},
	"StowageOverCommitted": {{
		fires: []series{constant("stowage_host_thin_promised_bytes"+of, 11), constant("stowage_host_free_bytes"+of, 10)},
		quiet: []series{constant("stowage_host_thin_promised_bytes"+of, 10), constant("stowage_host_free_bytes"+of, 10)},
	}},
	"StowageAgentDisconnected": {{
		fires: []series{constant("stowage_agent_connected"+of, 0)},
		quiet: []series{constant("stowage_agent_connected"+of, 1)},
	}},
	"StowageMachineUnreachable": {{
		fires: []series{constant("stowage_server_machines"+with(`status="unreachable"`), 1)},
		quiet: []series{constant("stowage_server_machines"+with(`status="unreachable"`), 0), constant("stowage_server_machines"+with(`status="fenced"`), 1)},
	}},
	"StowageCertificateExpires": {{
		fires: []series{constant("stowage_certificate_expiry_timestamp_seconds"+of, 19*86400)},
		quiet: []series{constant("stowage_certificate_expiry_timestamp_seconds"+of, 30*86400)},
	}},
	"StowageNoProvisioningServer": {{
		fires: []series{follows},
		quiet: []series{follows, constant(`stowage_server_provisions_environment{job="stowage",instance="b"}`, 1)},
	}, {
		fires: []series{follows},
		// A failover takes up to 15 seconds.
		quiet: []series{{"stowage_server_provisions_environment" + of, "1x149 0"}},
	}},
	"StowageSeveralProvisioningServers": {{
		fires: []series{leads, constant(`stowage_server_provisions_environment{job="stowage",instance="b"}`, 1)},
		quiet: []series{leads, constant(`stowage_server_provisions_environment{job="stowage-2",instance="b"}`, 1)},
	}},
	"StowageEtcdNearlyFull": {{
		fires: []series{constant("stowage_etcd_database_size_bytes"+of, int64(7)<<30)},
		quiet: []series{constant("stowage_etcd_database_size_bytes"+of, int64(6)<<30)},
	}},
}

// Each alert fires when it should, and only then.
func TestAlerts(t *testing.T) {
	rules, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	type sample struct {
		Labels string `json:"labels"`
		Value  int    `json:"value"`
	}
	var named []string
	var tests []any
	for _, a := range alerts(t) {
		named = append(named, a.Alert)
		if len(scenarios[a.Alert]) == 0 {
			t.Errorf("%s is not tested", a.Alert)
		}
		add := func(input []series, want ...sample) {
			tests = append(tests, map[string]any{"interval": "1m", "input_series": input, "promql_expr_test": []any{map[string]any{
				"expr": fmt.Sprintf("count(ALERTS{alertname=%q,alertstate=\"firing\"})", a.Alert), "eval_time": "150m", "exp_samples": want,
			}}})
		}
		for _, s := range scenarios[a.Alert] {
			add(s.fires, sample{"{}", 1})
			add(s.quiet)
		}
	}
	for name := range scenarios {
		if !slices.Contains(named, name) {
			t.Errorf("there is no alert %s", name)
		}
	}
	promtool(t, map[string]any{"rule_files": []string{rules}, "evaluation_interval": "2m", "tests": tests}, "test", "rules")
}
