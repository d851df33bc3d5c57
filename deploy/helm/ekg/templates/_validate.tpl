{{/* Fails with all values that cannot work together, one sentence each. */}}
{{- define "ekg.validate" -}}
{{- $errors := list -}}
{{- $own := dict "listen" "service.port" "launcher" "nothing: kernels are pods" "kubeconfig" "nothing: gateways run in the cluster"
  "kube-context" "nothing: gateways run in the cluster" "kube-namespace" "kernels.namespace" "supervisor-image" "image"
  "master-key-file" "masterKey.existingSecret" "second-master-key-file" "masterKey.existingSecret" "kube-policy" "policy" "jobs-dir" "jobs.claim"
  "kernelspec-dir" "kernelspecs"
  "metrics-listen" "metrics.enabled" "token" "authToken" "token-file" "token.existingSecret" "users-file" "users.file"
  "flavors" "flavors.list"
  "auth-token-review" "users.tokenReview" "hub-token" "users.hubTokenSecret" "tls-cert" "tls.existingSecret" "tls-key" "tls.existingSecret" -}}
{{- range $name, $_ := .Values.settings -}}
{{- if hasKey $own $name -}}
{{- $errors = append $errors (printf "settings.%s: the chart sets it. Use %s." $name (get $own $name)) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.flavors "asKernelspecs" -}}
{{- $errors = append $errors "flavors.asKernelspecs: was removed. Set unlisted: true in each flavor that the list of kernelspecs shall not have." -}}
{{- end -}}
{{- if contains "enterprise-gateway" .Values.image -}}
{{- $errors = append $errors (printf "image: %s is Enterprise Gateway's. Leave it out, or name an image of ekg." .Values.image) -}}
{{- end -}}
{{- if hasSuffix ":latest" .Values.image -}}
{{- $errors = append $errors "image: name a version instead of latest. Kernels' supervisors should be of the gateways' release." -}}
{{- end -}}
{{- if eq (include "ekg.kernels" .) .Release.Namespace -}}
{{- $errors = append $errors "kernels.namespace: kernels need another namespace than the gateways. A pod can mount every secret of its namespace." -}}
{{- end -}}
{{- if and .Values.users.file .Values.users.existingSecret -}}
{{- $errors = append $errors "users: there are both file and existingSecret. Give one of them." -}}
{{- end -}}
{{- if and (eq (include "ekg.auth" .) "users") (or .Values.authToken .Values.token.existingSecret) -}}
{{- $errors = append $errors "authToken, token.existingSecret: with users there is no shared token." -}}
{{- end -}}
{{- if and .Values.authToken .Values.token.existingSecret -}}
{{- $errors = append $errors "authToken: there is also token.existingSecret. Give one of them." -}}
{{- end -}}
{{- if and .Values.nfs.enabled .Values.kernelspecsPvc.enabled -}}
{{- $errors = append $errors "nfs, kernelspecsPvc: both are enabled. Enable one of them." -}}
{{- end -}}
{{- if and .Values.kernelspecs.image (or .Values.nfs.enabled .Values.kernelspecsPvc.enabled) -}}
{{- $errors = append $errors "kernelspecs.image: nfs or kernelspecsPvc is enabled, too. Use one of them." -}}
{{- end -}}
{{- if and .Values.nfs.enabled (not .Values.nfs.internalServerIPAddress) -}}
{{- $errors = append $errors "nfs.internalServerIPAddress: is missing." -}}
{{- end -}}
{{- if and .Values.kernelspecsPvc.enabled (not .Values.kernelspecsPvc.name) -}}
{{- $errors = append $errors "kernelspecsPvc.name: is missing." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (ne .Values.ingress.path "/") (ne (trimSuffix "/" .Values.ingress.path) (trimSuffix "/" (toString (index .Values.settings "base-url" | default "")))) -}}
{{- $errors = append $errors (printf "ingress.path: set settings.base-url to %s, too." .Values.ingress.path) -}}
{{- end -}}
{{- if and .Values.logLevel (not (has (lower .Values.logLevel) (list "debug" "info" "warn" "warning" "error" "critical"))) -}}
{{- $errors = append $errors (printf "logLevel: %s is none of debug, info, warn, error." .Values.logLevel) -}}
{{- end -}}
{{- if and (or .Values.metrics.podMonitor.enabled .Values.metrics.rules.enabled) (not .Values.metrics.enabled) -}}
{{- $errors = append $errors "metrics.podMonitor, metrics.rules: they need metrics.enabled." -}}
{{- end -}}
{{- with $errors -}}
{{- fail (printf "%d values cannot be used:\n  %s" (len .) (join "\n  " .)) -}}
{{- end -}}
{{- end }}

{{/* Enterprise Gateway's values without an effect, or with one that is hardly meant, a line each. */}}
{{- define "ekg.remarks" -}}
{{- $k := .Values.kernel -}}
{{- if $k.clusterRole }}
kernel.clusterRole: has no effect. Kernels get no rights in the cluster.
{{- end }}
{{- if $k.shareGatewayNamespace }}
kernel.shareGatewayNamespace: has no effect. Kernels run in {{ include "ekg.kernels" . }}: kernels.namespace names another.
{{- end }}
{{- if not (kindIs "invalid" $k.launchTimeout) }}
kernel.launchTimeout: has no effect. settings.start-wait is how long a start waits. 30 minutes without progress end it.
{{- end }}
{{- if not (kindIs "invalid" $k.infoTimeout) }}
kernel.infoTimeout: has no effect. 30 minutes without progress end a start.
{{- end }}
{{- if and $k.allowedKernels (not (or .Values.kernelspecs.image .Values.nfs.enabled .Values.kernelspecsPvc.enabled)) }}
{{- $offered := false -}}
{{- $allowed := dict -}}
{{- range $k.allowedKernels }}{{ $_ := set $allowed (lower (toString .)) true }}{{ end -}}
{{- range $name, $spec := .Values.kernelspecs.specs }}
{{- if and $spec (hasKey $allowed (lower $name)) }}{{ $offered = true }}{{ end -}}
{{- end }}
{{- if not $offered }}
kernel.allowedKernels: names none of kernelspecs.specs, so no kernelspec is offered. Add the kernelspecs, or change the list.
{{- end }}
{{- end }}
{{- if $k.defaultServiceAccountName }}
kernel.defaultServiceAccountName: has no effect. metadata.ekg.serviceAccountName of a kernelspec names an account.
{{- end }}
{{- if .Values.mirrorWorkingDirs }}
mirrorWorkingDirs: has no effect. metadata.ekg.workingDir of a kernelspec sets the working directory.
{{- end }}
{{- range .Values.service.ports }}
{{- if ne .name "http" }}
service.ports {{ .name }}: has no effect. Kernels do not call back to a port of the gateways.
{{- else }}
{{- range $key, $value := omit . "name" "port" "nodePort" }}
{{- if ne $key "targetPort" }}
service.ports http {{ $key }}: has no effect.
{{- else if not (has (toString $value) (list "8888" "http")) }}
service.ports http targetPort: has no effect. The gateways listen on port 8888, and the Service leads there.
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $asked := (.Values.policy.kernelspecs | default dict).objects | default list }}
{{- if and (not .Values.objects) (or (has "Service" $asked) (has "PersistentVolumeClaim" $asked)) }}
policy.kernelspecs.objects: has no effect on Services and claims without objects=true, which gives the right to create them.
{{- end }}
{{- if .Values.kip.enabled }}
kip: has no effect. Nodes pull the images of prePull ahead.
{{- end }}
{{- end }}
