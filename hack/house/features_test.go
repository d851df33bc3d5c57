package house

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/python/ekg-migrate/ekg_migrate/enterprise"
)

// spawnerTraits are the traits of KubeSpawner 7.1 that operators set, without those that only configure its hub. The
// last ones are those of JupyterHub's Spawner.
const spawnerTraits = `additional_profile_form_template_paths after_pod_created_hook allow_privilege_escalation
automount_service_account_token cmd common_labels component_label container_security_context delete_grace_period
delete_pvc delete_stopped_pods dns_name_template enable_user_namespaces events_enabled extra_annotations
extra_container_config extra_containers extra_labels extra_pod_config extra_resource_guarantees extra_resource_limits
fs_gid get_pod_url gid handle_legacy_names hub_connect_ip hub_connect_port image image_pull_policy image_pull_secrets
init_containers ip k8s_api_host k8s_api_request_retry_timeout k8s_api_request_timeout k8s_api_ssl_ca_cert
k8s_api_threadpool_workers k8s_api_verify_ssl lifecycle_hooks modify_pod_hook namespace node_affinity_preferred
node_affinity_required
node_selector pod_affinity_preferred pod_affinity_required pod_anti_affinity_preferred pod_anti_affinity_required
pod_connect_ip pod_name_template pod_security_context priority_class_name privileged profile_form_template
profile_list pvc_name_template remember_pvc_name scheduler_name secret_mount_path secret_name_template service_account
services_enabled slow_spawn_message slow_spawn_message_frequency slow_spawn_message_threshold slug_scheme
storage_access_modes storage_capacity storage_class storage_extra_annotations storage_extra_labels storage_pvc_ensure
storage_selector supplemental_gids tolerations uid user_namespace_annotations user_namespace_labels
user_namespace_template volume_mounts volumes working_dir

args cpu_guarantee cpu_limit environment http_timeout mem_guarantee mem_limit pre_spawn_hook start_timeout`

// featureRows returns the cells of a table of features.
func featureRows(t *testing.T, of string) [][]string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/from-enterprise-gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "<!-- features of "+of+" -->\n")
	table, _, ended := strings.Cut(rest, "<!-- /features of "+of+" -->")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if !ended || len(lines) < 20 {
		t.Fatalf("there is no table of the features of %s, or only %d rows", of, len(lines))
	}
	var rows [][]string
	for _, line := range lines[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 || !slices.Contains([]string{"same", "other way", "not"}, cells[1]) {
			t.Errorf("a row has not a feature, one of three answers, and how: %s", line)
			continue
		}
		rows = append(rows, cells)
	}
	return rows
}

// Each row of the tables that compare features says same, other way or not, and what does it or why not. Each trait of
// KubeSpawner has one row. TestDocs_Links follows the links.
func TestDocs_Features(t *testing.T) {
	featureRows(t, "Enterprise Gateway")
	seen := map[string]int{}
	for _, row := range featureRows(t, "KubeSpawner") {
		for name := range strings.SplitSeq(row[0], ", ") {
			seen[strings.Trim(name, "`")]++
		}
	}
	for _, trait := range strings.Fields(spawnerTraits) {
		if seen[trait] != 1 {
			t.Errorf("%s is in %d rows", trait, seen[trait])
		}
		delete(seen, trait)
	}
	for name := range seen {
		t.Errorf("%s is no trait of KubeSpawner", name)
	}
}

// backticks matches a name in a table.
var backticks = regexp.MustCompile("`([A-Za-z_]+)`")

// The table of Enterprise Gateway agrees with the options that ekg-migrate reads: an option that has the same effect
// has a setting, and one without a counterpart has a reason. Each option is known to the table or to ekg-migrate.
func TestDocs_FeaturesAndOptions(t *testing.T) {
	data, err := os.ReadFile("../../testdata/enterprise/migrate/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	options := enterprise.Read()
	answers := map[string]string{}
	for _, row := range featureRows(t, "Enterprise Gateway") {
		for _, m := range backticks.FindAllStringSubmatch(row[0], -1) {
			answers[m[1]] = row[1]
		}
	}
	compared := 0
	for _, name := range strings.Fields(string(data)) {
		if strings.HasSuffix(name, "KernelManager.default_kernel_name") {
			continue // without an effect in Enterprise Gateway, too
		}
		answer, option := answers[name[strings.LastIndex(name, ".")+1:]], options.Find(name)
		switch {
		case option == nil && answer == "":
			t.Errorf("neither the table nor options.json has %s", name)
		case answer == "same" && option.Unmatched() || answer == "not" && !option.Unmatched():
			t.Errorf("the table says %q of %s, and options.json has %+v", answer, name, option)
		case answer != "":
			compared++
		}
	}
	if compared < 30 {
		t.Errorf("only %d options are in the table", compared)
	}
}
