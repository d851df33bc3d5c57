package supervisor

const fakeKernelVariable = "EKG_FAKE"

func fakeKernelArgv() []string { return nil }
