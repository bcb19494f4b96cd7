{{/* A name that fits into a label, and the labels by which pods are selected. */}}
{{- define "idem-proxy.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "idem-proxy.selector" -}}
app.kubernetes.io/name: idem-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "idem-proxy.labels" -}}
{{ include "idem-proxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
