package podbuild

import corev1 "k8s.io/api/core/v1"

// Labels of Enterprise Gateway's pods, by which scripts and dashboards select. A kernelspec can set other values.
const (
	labelEGKernel    = "kernel_id"
	labelEGComponent = "component"
	labelEGApp       = "app"
)

// labelAsEG adds the labels of Enterprise Gateway's pods that the kernelspec does not set.
func (b *builder) labelAsEG(pod *corev1.Pod) {
	for key, value := range map[string]string{
		labelEGKernel: b.req.ID, labelEGComponent: "kernel", labelEGApp: "enterprise-gateway",
	} {
		if _, ok := pod.Labels[key]; !ok {
			pod.Labels[key] = value
		}
	}
}
