//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"
	"time"
)

// pysparkPath is where Spark's own archive, and so the image, has pyspark. spark-submit sets it for its applications.
const pysparkPath = "/opt/spark/python:/opt/spark/python/lib/py4j-0.10.9.5-src.zip"

// TestE2E_KubeEnterpriseSpark: Enterprise Gateway's kernelspec of Python for Spark, and an image as its own one. As it
// is, the kernelspec starts a kernel without a Spark context, and a cell makes one in the pod. With two variables the
// launcher makes it, and Enterprise Gateway's own integration tests of such kernels pass. Debian's Python is newer than
// this Spark, which cannot pickle its functions. So cells use Spark's own functions.
func TestE2E_KubeEnterpriseSpark(t *testing.T) {
	t.Parallel() // it mostly waits
	k, peers := enterpriseGateway(t, "kernel-spark")
	source := filepath.Join(peers, "eg-source")
	image := []string{"elyra/kernel-spark-py:VERSION", "localhost/kernel-spark:dev"}
	k.enterpriseKernelspec(source, "spark_python_kubernetes", image...)
	k.enterpriseKernelspecAs(source, "spark_python_kubernetes", "with_context", append(image, `"LAUNCH_OPTS": ""`,
		`"PYTHONPATH": "`+pysparkPath+`", "KERNEL_SPARK_CONTEXT_INIT_MODE": "lazy"`)...)
	k.start()
	k.token = "token-bob"

	const limit = 2 * time.Minute // Java starts slowly on a busy machine
	id := k.kernel("spark_python_kubernetes")
	k.state(id, "idle", limit)
	s := k.dial(t, id, "s", true)
	s.says("print('spark' in globals())", "False\n")
	r := s.execute("import sys\nsys.path[:0] = '"+pysparkPath+`'.split(':')
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print(spark.range(101).selectExpr('sum(id)').first()[0], spark.sparkContext.master, spark.version)`, limit)
	if r.stdout != "5050 local[*] 3.2.4\n" {
		t.Errorf("the cell printed %q; reply %s", r.stdout, r.reply.Content)
	}
	k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	k.podsGone(id)
	itestsOfSpark.run(t, k.gateway, peers, "PYTHON_KERNEL_CLIENT_NAME=with_context", "EXPECTED_APPLICATION_ID=local-.*",
		"EXPECTED_DEPLOY_MODE=client", `EXPECTED_SPARK_MASTER=local\[\*\]`, `EXPECTED_SPARK_VERSION=3\.2\.4`)
	k.nothingLeft()
}
