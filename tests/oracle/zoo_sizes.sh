# The zoo at small sizes, over the committed data: -D options of each model, as make_zoo.py has them. Sourced from the root of
# the checkout, by tests/oracle/zoo, tests/train/sweep and tests/cuda/. And `published MODEL`: the size of the paper, where the file's is
# a smaller one.
fixtures=tests/oracle/fixtures
pictures="-D images.x=$fixtures/images -D images.y=$fixtures/labels -D images.test_x=$fixtures/images -D images.test_y=$fixtures/labels"
plain="-D images.flip=false -D images.crop=0"
rgb="-D images.x=$fixtures/rgb-x.npy -D images.y=$fixtures/rgb-y.npy -D images.flip=false"
text="-D text.file=$fixtures/text.txt -D text.validation=0.0"

# zoo_sizes MODEL
zoo_sizes() {
	case $1 in
	mlp) echo "-D hidden=16 -D narrow=12 -D train.batch=4 $pictures" ;;
	lenet5) echo "-D train.batch=4 $pictures" ;;
	convnet) echo "-D channels=4 -D wide=16 -D train.batch=4 $pictures" ;;
	vgg16) echo "-D width=2 -D wide=16 -D dropout=0.0 -D train.batch=8 $pictures $plain" ;;
	resnet18) echo "-D width=2 -D size=64 -D channels=3 -D train.batch=4 $rgb" ;;
	resnet50) echo "-D width=2 -D train.batch=8 $pictures $plain" ;;
	mobilenet_v2) echo "-D unit=1 -D dropout=0.0 -D train.batch=8 $pictures $plain" ;;
	unet) echo "-D width=2 -D noise=0.0 -D train.batch=4 $pictures" ;;
	vit_b16) echo "-D size=64 -D channels=3 -D C=16 -D heads=2 -D layers=2 -D train.batch=4 $rgb" ;;
	lstm-char) echo "-D T=12 -D C=8 -D hidden=12 -D layers=2 -D train.batch=4 $text" ;;
	gpt-char) echo "-D T=16 -D C=32 -D heads=2 -D layers=2 -D train.batch=3 $text" ;;
	gpt2) echo "-D T=16 -D context=20 -D C=16 -D heads=2 -D layers=2 -D vocab=256 -D train.batch=3 -D text.file=$fixtures/zoo-tokens.bin -D text.validation=0.0" ;;
	llama) echo "-D T=16 -D C=24 -D layers=2 -D heads=4 -D kv_heads=2 -D hidden=32 -D window=5 -D train.batch=3 $text" ;;
	bert) echo "-D prepared=true -D T=12 -D C=16 -D layers=2 -D heads=2 -D vocab=64 -D positions=14 -D dropout=0.0 -D train.batch=4
		-D text.x=$fixtures/mlm-x.npy -D text.y=$fixtures/mlm-y.npy" ;;
	blocks) echo "$pictures" ;;
	autoencoder) echo "-D wide=16 -D code=3 -D train.batch=4 $pictures" ;;
	esac
}

published() {
	case $1 in
	vgg16 | resnet18 | resnet50 | mobilenet_v2 | vit_b16) echo "-D size=224 -D channels=3 -D classes=1000" ;;
	unet) echo "-D masks=true -D size=256 -D channels=3 -D width=64" ;;
	llama) echo "-D vocab=32000 -D T=2048 -D C=2048 -D layers=22 -D heads=32 -D kv_heads=4 -D hidden=5632" ;;
	bert) echo "-D vocab=30522 -D mask=103 -D T=512 -D positions=512 -D C=768 -D layers=12 -D heads=12" ;;
	esac
}
