// Package e2e holds the end-to-end tests. They run the real programs with real kernels, Jupyter's own clients and
// JupyterLab in Chromium, on this machine and on a Kubernetes cluster. The tests have the build tag e2e;
// CONTRIBUTING.md says how to run some of them. Scripts that they run as subtests are in testdata. The package has no
// code but tests.
package e2e
