package house

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// spawnerTraits are the traits of KubeSpawner 7.1 that operators set, without those that only configure its hub.
const spawnerTraits = `additional_profile_form_template_paths after_pod_created_hook allow_privilege_escalation
automount_service_account_token cmd common_labels component_label container_security_context delete_grace_period
delete_pvc delete_stopped_pods dns_name_template enable_user_namespaces events_enabled extra_annotations
extra_container_config extra_containers extra_labels extra_pod_config extra_resource_guarantees extra_resource_limits
fs_gid get_pod_url gid handle_legacy_names hub_connect_ip hub_connect_port image image_pull_policy image_pull_secrets
init_containers ip lifecycle_hooks modify_pod_hook namespace node_affinity_preferred node_affinity_required
node_selector pod_affinity_preferred pod_affinity_required pod_anti_affinity_preferred pod_anti_affinity_required
pod_connect_ip pod_name_template pod_security_context priority_class_name privileged profile_form_template
profile_list pvc_name_template remember_pvc_name scheduler_name secret_mount_path secret_name_template service_account
services_enabled slow_spawn_message slow_spawn_message_frequency slow_spawn_message_threshold slug_scheme
storage_access_modes storage_capacity storage_class storage_extra_annotations storage_extra_labels storage_pvc_ensure
storage_selector supplemental_gids tolerations uid user_namespace_annotations user_namespace_labels
user_namespace_template volume_mounts volumes working_dir`

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
